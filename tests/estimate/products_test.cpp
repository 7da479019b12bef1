// Times of products that the tuner has on record, as shares of the peak in a cluster file.
#include "tests/support/harness.h"

#include "codegen/codegen.h"
#include "ir/graph.h"
#include "passes/analysis/cost.h"
#include "runtime/tuning/tuned_schedules.h"
#include "support/json.h"
#include "tools/estimate/forecast.h"
#include "tools/estimate/products.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

using namespace gptc;
using namespace e2e;

namespace {

constexpr const char *clusterText = R"(name = "here"
[device]
kind = "cpu"
peak_fp32 = "500 GFLOP/s"   # not measured
memory = "64 GiB"
memory_bandwidth = "50 GB/s"
cache = "16 MiB"
packs = true
efficiency = [  # of another machine
  [1, 0.1],
  [2, 0.2],
]
matmul = 0.3

[node]
devices = 2
bandwidth = "10 GB/s"
)";

/// A product of so many tokens: forward (n x k times k x m), or the gradient of its weight.
std::unique_ptr<Module> product(int tokens, int k, int m, bool gradient = false) {
  const std::string b = gradient ? fmt::format("[{},{}]", tokens, m) : fmt::format("[{},{}]", k, m);
  const std::string y = gradient ? fmt::format("[{},{}]", k, m) : fmt::format("[{},{}]", tokens, m);
  return parseModule(fmt::format("func @f(%a: f32[{0},{1}], %b: f32{2}) -> (f32{3}) {{\n"
                                 "%y = fused %a, %b {{kind=\"matmul\"}} : f32{3} {{\n"
                                 "^(%a: f32[{0},{1}], %b: f32{2})\n%m = matmul %a, %b{4} : f32{3}\nyield %m\n}}\n"
                                 "return %y\n}}",
                                 tokens, k, b, y, gradient ? " {ta=true, fold=64}" : ""),
                     "test");
}

class Products : public ::testing::Test {
protected:
  Workplace w;
  const std::string cache = w.path("cache"), file = w.path("here.toml");
  const Target target = hostTarget();
  ClusterConfig cluster;

  void SetUp() override {
    ASSERT_EQ(mkdir(cache.c_str(), 0700), 0);
    writeFile(file, clusterText);
    cluster = loadCluster(file);
  }

  double secondsAt(const Op &group, double share) {
    MachineRates rates = ratesOf(cluster.device, 1);
    rates.matmul = share;
    return costOf(group, rates).seconds;
  }
  /// Puts a race on record that the default schedule has won in so many seconds.
  void plant(const Module &m, double seconds, const std::function<void(TuningRecord &)> &change = {}) {
    const Op &group = *m.functions[0]->body.front();
    TuningRecords records(cache);
    TuningRecord r = problemOf(group, target);
    r.schedule = defaultSchedule(group, target);
    r.source = TunedSchedules(records, target).sourceOf(group, r.schedule);
    r.time = {seconds, seconds, seconds, 5};
    r.raced = 1;
    r.session = "1";
    r.isDefault = true;
    if (change)
      change(r);
    records.append({r});
    records.keepGroup(group, target);
  }
  void plantAt(double share, const Module &m, const std::function<void(TuningRecord &)> &change = {}) {
    plant(m, secondsAt(*m.functions[0]->body.front(), share), change);
  }
  ProductShares shares() {
    TuningRecords records(cache);
    return productShares(records, target, cluster.device);
  }
};

TEST_F(Products, GiveTheSharesThatTheirTimesCameFrom) {
  plantAt(0.8, *product(512, 768, 768));
  plantAt(0.4, *product(512, 768, 640));
  plantAt(0.5, *product(128, 512, 768, /*gradient=*/true));  // whose rows are tokens, too
  const ProductShares s = shares();
  EXPECT_EQ(s.products, 3);
  ASSERT_EQ(s.byRows.size(), 2u);
  EXPECT_NEAR(s.byRows.at(512), std::sqrt(0.8 * 0.4), 1e-6);
  EXPECT_NEAR(s.byRows.at(128), 0.5, 1e-6);
  setShares(cluster.device, s);
  EXPECT_NEAR(cluster.device.matmul * cluster.device.efficiencyAt(128), 0.5, 1e-6);
  EXPECT_NEAR(cluster.device.matmul * cluster.device.efficiencyAt(4096), std::sqrt(0.8 * 0.4), 1e-6);
}

TEST_F(Products, OnlyWhatSaysSomethingCounts) {
  EXPECT_EQ(shares().products, 0);
  const auto m = product(512, 768, 768);
  plantAt(0.8, *m, [](TuningRecord &r) { r.machine = "another machine"; });
  plantAt(0.8, *product(512, 768, 704), [](TuningRecord &r) { r.source = std::string(64, 'a'); });
  plantAt(0.8, *product(512, 768, 640), [](TuningRecord &r) { r.raced = 0; });
  // Memory takes most of it.
  const auto thin = product(512, 4, 768);
  plantAt(0.8, *thin);
  EXPECT_EQ(shares().products, 0);
  // A later race counts in place of an earlier one, and nothing is faster than the peak.
  plantAt(0.8, *m);
  plantAt(3, *m, [](TuningRecord &r) { r.session = "2"; });
  EXPECT_EQ(shares().products, 1);
  EXPECT_EQ(shares().byRows.at(512), 1);
}

TEST_F(Products, EnterForecastsThroughTheFile) {
  const std::string out = w.path("measured.toml");
  const std::map<std::string, std::string> env = {{"GPTC_CACHE", cache}};
  const std::vector<std::string> command = {"calibrate", file, "--records"};
  const Result none = w.run("gptc", command, env);
  EXPECT_EQ(none.code, 3);
  EXPECT_NE(none.output.find("is on record"), std::string::npos) << none.output;
  EXPECT_NE(none.output.find("gptc tune MODEL.toml --set compile.target=cpu"), std::string::npos) << none.output;

  plantAt(0.6, *product(256, 768, 768));
  plantAt(0.9, *product(1024, 768, 768));
  const Result r = w.run("gptc", {"calibrate", file, "--records", "-o", out}, env);
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("device.matmul            0.9\ndevice.efficiency        [[256, 0.6667], [1024, 1]]\n"
                          "note: by the times of 2 products on record of "),
            std::string::npos)
      << r.output;
  const DeviceSpec d = loadCluster(out).device;
  EXPECT_NEAR(d.matmul, 0.9, 1e-3);
  EXPECT_NEAR(d.matmul * d.efficiencyAt(256), 0.6, 1e-3);
  // In place of what was there; the rest of the file is as it was.
  std::string expected = clusterText;
  const size_t from = expected.find("efficiency"), to = expected.find("[node]");
  expected.replace(from, to - from, "matmul = 0.9\nefficiency = [[256, 0.6667], [1024, 1]]\n\n");
  EXPECT_EQ(readFile(out), expected);

  const auto seconds = [&](const std::string &cluster, int sequences) {
    const Result e = w.run("gptc",
                           {"estimate", w.modelFile(), "--cluster", cluster, "--json", "--set", "accumulate=1", "--set",
                            fmt::format("train.micro_batch={}", sequences)},
                           env);
    EXPECT_EQ(e.code, 0) << e.output;
    return double(parseJson(e.output)["s_per_step"]);
  };
  EXPECT_LT(seconds(out, 4), seconds(file, 4));

  const nlohmann::json j = parseJson(w.run("gptc", {"calibrate", file, "--records", "--json"}, env).output);
  EXPECT_EQ(j["device"]["products"], 2);
  EXPECT_EQ(j["device"]["efficiency"].size(), 2u);
  EXPECT_NEAR(double(j["device"]["matmul"]), 0.9, 1e-6);

  // Records are of gptc's kernels, and say nothing of others'.
  writeFile(file, std::string(clusterText) + "[software]\nname = \"DeepSpeed\"\n");
  const Result other = w.run("gptc", command, env);
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.output.find("records are of gptc's kernels"), std::string::npos) << other.output;
}

}  // namespace
