// Plans, modules and checkpoints that earlier programs wrote (tests/e2e/before): today's read them without a warning
// and compute the same. They were written by gptc 0.1 of November 2026 (plan schema 2), whose programs called the two
// forms of GELU `gelu` (tanh) and `gelu_erf` (exact):
// - before.gir: a module of two layers, exact GELU in the first, the tanh form in the second
// - plan: compiled from it; its data are /proc/self/cwd/train.bin and val.bin, those of the working folder
// - of-plan: the run of the plan: its checkpoint of step 4 and the losses of all 8 steps
// - model.toml, of-model: the same of a model of one layer
#include "tests/support/harness.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <sstream>

using namespace e2e;
namespace fs = std::filesystem;

namespace {

class BeforeTest : public testing::Test {
protected:
  const std::string kept = GPTC_SOURCE_DIR "/tests/e2e/before/";
  Workplace w;

  void SetUp() override {
    for (const char *name : {"plan", "before.gir", "model.toml", "train.bin", "val.bin"})
      fs::copy(kept + name, w.path(name), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }

  /// gptrun in the folder of the data, from the start or from the kept checkpoint, with the losses of then.
  void expectLosses(const std::string &plan, const std::string &of, bool resumed) {
    const std::string out = w.path(plan + (resumed ? ".resumed" : ".whole"));
    fs::create_directories(out + "/checkpoints");
    if (resumed)
      fs::copy(kept + of + "/step-00000004", out + "/checkpoints/step-00000004");
    const std::string command = fmt::format("cd '{}' && exec '" GPTC_BIN_DIR "/gptrun' {} --out-dir '{}' --resume {}",
                                            w.path(""), plan, out, resumed ? "must" : "auto");
    const Result r = Process({"/bin/sh", "-c", command}, {{"GPTC_CACHE", cacheDir()}}, w.path("output")).wait();
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(r.output.find("warning"), std::string::npos) << r.output;
    EXPECT_EQ(r.output.find("note"), std::string::npos) << r.output;
    // Other instruction sets may differ in the last bits.
    std::istringstream want(readFile(kept + of + "/losses.txt"));
    size_t lines = 0;
    const std::vector<std::string> all = logLines(out);
    std::string step, kind;
    for (double loss; want >> step >> kind >> loss;) {
      // The kept run's log is not here, so that its evaluation of step 4 is made up for.
      if (resumed && std::stoi(step) <= 4 && !(step == "4" && kind == "val_loss"))
        continue;
      ASSERT_LT(lines, all.size()) << r.output;
      const std::string &line = all[lines++];
      const size_t at = line.find(" " + kind + "=");
      ASSERT_TRUE(line.starts_with("step=" + step + " ") && at != std::string::npos) << line;
      EXPECT_NEAR(std::stod(line.substr(at + kind.size() + 2)), loss, 5e-5) << line;
    }
    EXPECT_EQ(lines, all.size());
    EXPECT_EQ(lines, resumed ? 6u : 10u);
  }
};

TEST_F(BeforeTest, APlanRunsAndResumes) {
  expectLosses("plan", "of-plan", false);
  expectLosses("plan", "of-plan", true);
}

// The two names of GELU that are in it included.
TEST_F(BeforeTest, AModuleIsCompiled) {
  const std::string module = readFile(w.path("before.gir"));
  for (const char *name : {" = gelu %", " = gelu_erf %"})
    ASSERT_NE(module.find(name), std::string::npos) << name;
  const Result r = w.gptc({"compile", w.path("before.gir"), "-o", w.path("compiled"), "--set",
                           "data.train=" + w.path("train.bin"), "--set", "data.val=" + w.path("val.bin"), "--set",
                           "eval.every=4", "--set", "checkpoint.every=4", "--set", "log.every=1"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.find("warning"), std::string::npos) << r.output;
  expectLosses("compiled", "of-plan", false);
}

// Today's words for the two in the module change nothing of what is planned.
TEST_F(BeforeTest, AModuleOfBothNamesIsPlannedAlike) {
  std::string text = readFile(w.path("before.gir"));
  for (const auto &[before, now] : {std::pair(" = gelu %", " = gelu_tanh %"),
                                    {" = gelu_erf %", " = gelu_exact %"},
                                    {" = gelu_grad %", " = gelu_tanh_grad %"},
                                    {" = gelu_erf_grad %", " = gelu_exact_grad %"}})
    for (size_t at; (at = text.find(before)) != std::string::npos;)
      text.replace(at, strlen(before), now);
  ASSERT_NE(text, readFile(w.path("before.gir")));
  fs::create_directories(w.path("today"));
  writeFile(w.path("today/before.gir"), text);
  std::vector<std::string> planned;
  for (const char *file : {"before.gir", "today/before.gir"}) {
    const std::string plan = w.path(file) + ".plan";
    const Result r = w.gptc({"compile", w.path(file), "-o", plan, "--set", "data.train=" + w.path("train.bin")});
    ASSERT_EQ(r.code, 0) << r.output;
    planned.push_back(readFile(plan + "/planned.gir"));
  }
  EXPECT_EQ(planned[0], planned[1]);
}

TEST_F(BeforeTest, ACheckpointGoesOnWithAPlanOfToday) {
  const Result r = w.gptc({"compile", w.path("model.toml"), "-o", w.path("today")});
  ASSERT_EQ(r.code, 0) << r.output;
  expectLosses("today", "of-model", false);
  expectLosses("today", "of-model", true);
}

}  // namespace
