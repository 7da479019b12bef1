// gptc tune and what a compile makes of its records: other schedules, the same bits.
#include "harness.h"

#include <nlohmann/json.hpp>

#include <filesystem>

using namespace e2e;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

class TuneTest : public ::testing::Test {
protected:
  Workplace w;
  // A cache of its own: other tests expect default schedules.
  const std::map<std::string, std::string> env = {{"GPTC_CACHE", w.path("tuning-cache")}};
  Result gptc(std::vector<std::string> args) { return w.run("gptc", std::move(args), env); }
  std::string records() const { return w.path("tuning-cache") + "/tuning.jsonl"; }
  json tune(std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"tune", w.modelFile(), "--json", "--seconds", "4"};
    args.insert(args.end(), more.begin(), more.end());
    const Result r = gptc(args);
    EXPECT_EQ(r.code, 0) << r.output;
    return r.code ? json() : json::parse(r.output);
  }
  /// The records of one search, which all tests share.
  void haveRecords() {
    static std::string text;
    if (text.empty()) {
      tune();
      text = readFile(records());
    }
    fs::create_directories(w.path("tuning-cache"));
    fs::permissions(w.path("tuning-cache"), fs::perms::owner_all);
    write(text);
  }
  void write(const std::string &text) {
    writeFile(records(), text);
    fs::permissions(records(), fs::perms::owner_read | fs::perms::owner_write);
  }
  std::string compile(const std::string &name, const std::string &autotune) {
    const Result r = gptc({"compile", w.modelFile(), "-o", w.path(name), "--set", "compile.autotune=" + autotune,
                           "--set", "out_dir=" + w.path(name + ".out")});
    EXPECT_EQ(r.code, 0) << r.output;
    return r.output;
  }
};

TEST_F(TuneTest, SearchesOnceAndDrawsARoofline) {
  const json first = tune({"--svg", w.path("roof.svg")});
  ASSERT_TRUE(first.is_object());
  EXPECT_GT(first["searched"].get<int>(), 3);
  EXPECT_GT(first["peak_fp32"].get<double>(), 1e9);
  int tried = 0;
  for (const json &k : first["kernels"]) {
    EXPECT_LE(k["tried"].get<int>(), k["candidates"].get<int>() + 1);
    tried += k["tried"].get<int>();
  }
  EXPECT_GT(tried, first["searched"].get<int>()) << "no rival of any default";
  const std::string svg = readFile(w.path("roof.svg"));
  EXPECT_NE(svg.find("<svg"), std::string::npos);
  EXPECT_NE(svg.find("GFLOP/s"), std::string::npos);
  const json again = tune();
  EXPECT_GE(again["known"].get<int>(), 1);
  EXPECT_LE(again["searched"].get<int>(), first["searched"].get<int>() + first["unsearched"].get<int>());
}

TEST_F(TuneTest, ATunedPlanGivesTheBitsOfTheDefault) {
  haveRecords();
  EXPECT_EQ(compile("default", "off").find("schedules "), std::string::npos);
  EXPECT_NE(compile("tuned", "cached").find("kernels from measurements"), std::string::npos);
  for (const char *plan : {"default", "tuned"}) {
    const Result r = w.gptrun({w.path(plan), "--steps", "4"});
    ASSERT_EQ(r.code, 0) << r.output;
  }
  EXPECT_EQ(logLines(w.path("default.out")), logLines(w.path("tuned.out")));
  EXPECT_EQ(w.finalState(w.path("default.out")), w.finalState(w.path("tuned.out")));
}

TEST_F(TuneTest, RecordsTravel) {
  haveRecords();
  ASSERT_EQ(gptc({"cache", "export", w.path("races.jsonl")}).code, 0);
  const Result list = gptc({"cache", "ls"});
  EXPECT_NE(list.output.find("matmul"), std::string::npos) << list.output;
  ASSERT_EQ(gptc({"cache", "prune"}).code, 0);
  fs::remove(records());
  EXPECT_EQ(compile("empty", "cached").find("schedules "), std::string::npos);
  const Result import = gptc({"cache", "import", w.path("races.jsonl")});
  EXPECT_NE(import.output.find("taken over"), std::string::npos) << import.output;
  EXPECT_NE(compile("imported", "cached").find("kernels from measurements"), std::string::npos);
  EXPECT_NE(gptc({"cache", "import", w.path("races.jsonl")}).output.find("0 records"), std::string::npos);
  ASSERT_EQ(gptc({"cache", "merge", "-o", w.path("all.jsonl"), w.path("races.jsonl"), w.path("races.jsonl")}).code, 0);
  EXPECT_EQ(readFile(w.path("all.jsonl")), readFile(w.path("races.jsonl")));
}

TEST_F(TuneTest, DamagedRecordsAreSetAsideAndNothingStops) {
  haveRecords();
  EXPECT_EQ(gptc({"cache", "verify"}).code, 0);
  write("garbage\n" + readFile(records()).substr(0, 5000));
  const Result r = gptc({"compile", w.modelFile(), "-o", w.path("p")});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("damaged line"), std::string::npos) << r.output;
  EXPECT_EQ(gptc({"cache", "verify"}).code, 0);
  write(readFile(records()) + "more garbage\n");
  EXPECT_EQ(gptc({"cache", "verify"}).code, 5);
}

TEST_F(TuneTest, WhatCannotBeTunedSaysSo) {
  Result r = gptc({"tune", w.modelFile(), "--set", "compile.target=cuda:sm_90a"});
  EXPECT_EQ(r.code, 3);
  EXPECT_NE(r.output.find("CPU only"), std::string::npos) << r.output;
  EXPECT_EQ(gptc({"tune", w.path("none.toml")}).code, 3);
  EXPECT_EQ(gptc({"tune", w.modelFile(), "--seconds", "0"}).code, 2);
  EXPECT_EQ(gptc({"cache"}).code, 2);
  EXPECT_EQ(gptc({"cache", "import", w.path("none.jsonl")}).code, 3);
  r = gptc({"compile", w.modelFile(), "-o", w.path("p"), "--set", "compile.autotune=search", "--set",
            "compile.autotune_budget_s=3"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("kernels searched"), std::string::npos) << r.output;
}

TEST_F(TuneTest, BenchMeasuresMachineStepAndKernels) {
  const Result p = gptc({"bench", "peak", "--json"});
  ASSERT_EQ(p.code, 0) << p.output;
  const json peak = json::parse(p.output);
  EXPECT_GT(peak["fp32_flops"].get<double>(), 1e9);
  EXPECT_GT(peak["copy_bytes_per_s"].get<double>(), 1e8);
  const Result s = gptc({"bench", "step", w.modelFile(), "--steps", "3", "--json"});
  ASSERT_EQ(s.code, 0) << s.output;
  const json step = json::parse(s.output);
  EXPECT_LE(step["ms"]["least"], step["ms"]["median"]);
  EXPECT_LE(step["ms"]["median"], step["ms"]["most"]);
  EXPECT_GT(step["tokens_per_s"].get<double>(), 0);
  EXPECT_GT(step["mfu"].get<double>(), 0);
  EXPECT_LT(step["mfu"].get<double>(), 1);
  const Result k = gptc({"bench", "kernels", w.modelFile(), "--steps", "2", "--json"});
  ASSERT_EQ(k.code, 0) << k.output;
  double matmuls = 0;
  const json list = json::parse(k.output)["kernels"];
  for (const json &one : list) {
    EXPECT_GT(one["ms"].get<double>(), 0) << one;
    matmuls += one["schedule"].get<std::string>().starts_with("matmul ") ? one["calls"].get<double>() : 0;
  }
  EXPECT_GT(matmuls, 10);
  EXPECT_EQ(gptc({"bench", "step", w.modelFile(), "--set", "compile.target=cuda:sm_90a"}).code, 3);
  EXPECT_EQ(gptc({"bench", "kernels", w.path("x.gir")}).code, 2);
}

}  // namespace
