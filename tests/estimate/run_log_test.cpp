// gptrun says what it predicted and what it took; gptc calibrate takes that as an observation.
#include "support/json.h"
#include "tests/support/harness.h"
#include "tests/support/json_lines.h"

#include <gtest/gtest.h>

using namespace e2e;
using nlohmann::json;

namespace {

std::vector<json> linesOf(const std::string &file) { return gptc::test::jsonLines(readFile(file)); }

constexpr const char *cluster = R"([device]
kind = "cpu"
peak_fp32 = "500 GFLOP/s"
memory = "64 GiB"
memory_bandwidth = "50 GB/s"
[node]
devices = 2
bandwidth = "10 GB/s"
)";

TEST(RunLog, PredictedAgainstMeasured) {
  Workplace w;
  const std::string plan = w.compile("log.plan", {"train.steps=12"}), out = w.path("run");
  ASSERT_EQ(w.gptrun({plan, "--out-dir", out}).code, 0);
  const std::string file = out + "/forecast.jsonl";
  std::vector<json> lines = linesOf(file);
  ASSERT_EQ(lines.size(), 1u);
  const json &l = lines[0], &p = l["predicted"], &m = l["measured"];
  EXPECT_EQ(l["ranks"], 1);
  EXPECT_EQ(l["steps"], 9);  // without two cold ones and the one that was looked at
  EXPECT_GT(double(m["s_per_step"]), 0);
  EXPECT_EQ(p["communication"], 0.0);
  EXPECT_EQ(m["communication"], 0.0);
  // The same kinds of kernels on both sides, and together they are the step.
  double predicted = 0, measured = 0;
  for (const auto &[name, seconds] : p["kernels"].items()) {
    ASSERT_TRUE(m["kernels"].contains(name)) << name;
    predicted += double(seconds);
    measured += double(m["kernels"][name]);
  }
  EXPECT_EQ(p["kernels"].size(), m["kernels"].size());
  EXPECT_TRUE(p["kernels"].contains("matmul") && p["kernels"].contains("optimizer"));
  EXPECT_DOUBLE_EQ(predicted, double(p["s_per_step"]));
  EXPECT_GT(measured, 0);
  EXPECT_GT(int64_t(m["bytes"]), int64_t(p["bytes"]) / 2);

  // A run that takes too few steps says nothing; one that goes on adds a line.
  ASSERT_EQ(w.gptrun({plan, "--out-dir", w.path("short"), "--steps", "3"}).code, 0);
  EXPECT_EQ(readFile(w.path("short") + "/forecast.jsonl"), "");
  ASSERT_EQ(w.gptrun({plan, "--out-dir", w.path("parts"), "--steps", "6"}).code, 0);
  ASSERT_EQ(w.gptrun({plan, "--out-dir", w.path("parts")}).code, 0);
  EXPECT_EQ(linesOf(w.path("parts") + "/forecast.jsonl").size(), 2u);

  writeFile(w.path("c.toml"), cluster);
  const Result r = w.gptc(
      {"calibrate", w.path("c.toml"), "--log", file, "--fit", "slowdown", "--json", "--output", w.path("fitted.toml")});
  ASSERT_EQ(r.code, 0) << r.output;
  const json j = gptc::parseJson<json>(r.output);
  EXPECT_EQ(j["rows"][0]["name"], file + ":1");
  EXPECT_DOUBLE_EQ(double(j["rows"][0]["seen"]), double(m["s_per_step"]));
  // One scalar for one row: it is met.
  EXPECT_NEAR(double(j["rows"][0]["s_per_step"]), double(m["s_per_step"]), 1e-4 * double(m["s_per_step"]));
  EXPECT_NE(readFile(w.path("fitted.toml")).find("slowdown = "), std::string::npos);
}

// Steps between outer ones send nothing; their part of an outer step is measured as it is predicted.
TEST(RunLog, StepsHaveTheirPartOfOuterSteps) {
  Workplace w;
  const std::string plan = w.compile("outer.plan", {"parallel.data=2", "train.micro_batch=1", "parallel.sync_every=3"}),
                    out = w.path("run");
  const Result r = w.gptrun({plan, "--out-dir", out, "--ranks-per-node", "2"});
  ASSERT_EQ(r.code, 0) << r.output;
  const std::vector<json> lines = linesOf(out + "/forecast.jsonl");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_GT(double(lines[0]["predicted"]["communication"]), 0);
  EXPECT_GT(double(lines[0]["measured"]["communication"]), 0);
  // The only outer step of a run is timed, not observed: nothing is known of its kernels.
  const std::string seldom = w.compile(
      "seldom.plan", {"parallel.data=2", "train.micro_batch=1", "parallel.sync_every=6", "checkpoint.every=6"});
  const Result once = w.gptrun({seldom, "--out-dir", w.path("once"), "--ranks-per-node", "2", "--steps", "6"});
  ASSERT_EQ(once.code, 0) << once.output;
  const std::vector<json> one = linesOf(w.path("once") + "/forecast.jsonl");
  ASSERT_EQ(one.size(), 1u);
  EXPECT_GT(double(one[0]["measured"]["s_per_step"]), 0);
  EXPECT_TRUE(one[0]["measured"]["kernels"].is_null());
  EXPECT_TRUE(one[0]["measured"]["communication"].is_null());
}

TEST(RunLog, LinesThatAreNone) {
  Workplace w;
  writeFile(w.path("c.toml"), cluster);
  auto calibrate = [&](const std::string &line) {
    writeFile(w.path("f.jsonl"), line + "\n");
    return w.gptc({"calibrate", w.path("c.toml"), "--log", w.path("f.jsonl")});
  };
  const std::string rest = R"(,"measured":{"s_per_step":0.5},"settings":["model.n_layer=2"]})";
  EXPECT_NE(calibrate("{\"schema\":").output.find("GPTC0302"), std::string::npos);
  EXPECT_NE(calibrate(R"({"schema":2,"ranks":1,"target":"cpu")" + rest).output.find("schema 2"), std::string::npos);
  EXPECT_NE(calibrate(R"({"schema":1,"ranks":0,"target":"cpu")" + rest).output.find("GPTC0302"), std::string::npos);
  EXPECT_NE(calibrate(R"({"schema":1,"ranks":1,"target":"cuda:sm_90")" + rest).output.find("ran on a GPU"),
            std::string::npos);
  const Result module =
      calibrate(R"({"schema":1,"ranks":1,"target":"cpu","measured":{"s_per_step":0.5},"settings":[]})");
  EXPECT_EQ(module.code, 3);
  EXPECT_NE(module.output.find("from a module"), std::string::npos) << module.output;
  EXPECT_EQ(w.gptc({"calibrate", w.path("c.toml"), "--log", w.path("none.jsonl")}).code, 3);
}

}  // namespace
