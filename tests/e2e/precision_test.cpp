// Training in low precision: close to fp32, the same bits whatever the threads, micro-batches and interruptions, and
// checkpoints that hold masters only.
#include "tests/support/harness.h"

using namespace e2e;

namespace {

struct Setting {
  const char *name;
  std::vector<std::string> settings;
};

class Precision : public testing::TestWithParam<Setting> {
protected:
  std::string compile(const std::string &name, std::vector<std::string> more = {}) {
    more.insert(more.end(), GetParam().settings.begin(), GetParam().settings.end());
    return w.compile(name, more);
  }
  Workplace w;
};

TEST_P(Precision, SameBitsOnAnyThreadsMicroBatchesAndAfterResuming) {
  const std::string plan = compile("plan"), whole = w.train(plan, "whole", {"--threads", "2"});
  ASSERT_FALSE(whole.empty());
  EXPECT_TRUE(whole == w.train(plan, "one", {"--threads", "1"})) << "1 and 2 threads differ";
  EXPECT_TRUE(whole == w.train(plan, "three", {"--threads", "3"})) << "2 and 3 threads differ";
  w.train(plan, "parts", {"--steps", "5"});
  EXPECT_TRUE(whole == w.train(plan, "parts", {"--resume", "must"})) << "resumed";
  EXPECT_EQ(logLines(w.path("whole")), logLines(w.path("parts")));
  EXPECT_TRUE(whole == w.train(compile("plan2", {"train.micro_batch=2"}), "micro")) << "micro-batch 2 differs from 4";
  EXPECT_EQ(logLines(w.path("whole")), logLines(w.path("micro")));
}

// What the project promises for a whole run of a real recipe, 0.02 (docs/performance.md shows 0.001), a dozen steps
// keep too. How far single kernels may be off is bounded elsewhere; here whole steps must not drift apart. A mean of
// four runs: one of so few steps ends as far away (0.015 with fp8) when other values are rounded.
TEST_P(Precision, TrainsLikeFp32) {
  double sum = 0;
  for (const char *seed : {"1337", "1", "2", "3"}) {
    const std::vector<std::string> seeded = {std::string("train.seed=") + seed};
    const std::string lowOut = std::string("low") + seed, plainOut = std::string("plain") + seed;
    w.train(compile(lowOut + "-plan", seeded), lowOut);
    w.train(w.compile(plainOut + "-plan", seeded), plainOut);
    const double low = lastValLoss(w.path(lowOut)), plain = lastValLoss(w.path(plainOut));
    EXPECT_NE(low, plain);
    sum += low - plain;
  }
  EXPECT_NEAR(sum / 4, 0, 0.02);
}

TEST_P(Precision, CheckpointsHoldMasters) {
  const std::string plan = compile("plan");
  const std::string state = w.train(plan, "out");
  EXPECT_EQ(state.find("low."), std::string::npos);
  EXPECT_NE(state.find("wte.weight"), std::string::npos);
  // Evaluation fills the copies from the masters: the loss is that of the end of training.
  Result eval = w.gptrun({"eval", plan, "--out-dir", w.path("out")});
  EXPECT_EQ(eval.code, 0) << eval.output;
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", lastValLoss(w.path("out")));
  EXPECT_NE(eval.output.find(text), std::string::npos) << eval.output << text;
}

INSTANTIATE_TEST_SUITE_P(
    All, Precision,
    testing::Values(Setting{"bf16", {"precision.compute=bf16"}},
                    Setting{"bf16_moments", {"precision.compute=bf16", "precision.optimizer_state=bf16"}},
                    Setting{"fp8", {"precision.compute=bf16", "precision.fp8=all"}},
                    Setting{"bf16_residual", {"precision.compute=bf16", "precision.residual=compute"}},
                    Setting{"fp16_residual", {"precision.compute=fp16", "precision.residual=compute"}},
                    Setting{"fp32_moments_bf16", {"precision.optimizer_state=bf16"}},
                    Setting{"fp16", {"precision.compute=fp16"}}),
    [](auto &info) { return info.param.name; });

// With one token a step and 8192 of them, the gradient of the loss is 2^16 (1 - 1/8192) at the first scale: beyond
// fp16, which ends at 65520. That is no divergence.
TEST(Choice, OfAutoIsSaid) {
  Workplace w;
  Result r = w.gptc({"compile", w.modelFile(), "-o", w.path("plan"), "--set", "precision.compute=auto"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("precision   fp32 (compute auto)"), std::string::npos) << r.output;
}

TEST(LossScale, AnOverflowHalvesItAndNothingElseHappens) {
  Workplace w;
  const std::string plan = w.compile("plan", {"precision.compute=fp16", "model.block_size=1", "model.vocab_size=8192",
                                              "train.global_batch_tokens=1", "train.micro_batch=1",
                                              "train.on_nonfinite=halt", "eval.every=0", "train.steps=3"});
  Result r = w.gptrun({plan, "--out-dir", w.path("out")});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("step 1: gradients overflow at a loss scale of 65536; halved"), std::string::npos)
      << r.output;
  EXPECT_NE(r.output.find("scale 2^15"), std::string::npos) << r.output;
  const std::string log = readFile(w.path("out") + "/log.jsonl");
  EXPECT_NE(log.find("\"loss_scale\": 65536"), std::string::npos) << log;
  EXPECT_NE(log.find("\"loss_scale\": 32768"), std::string::npos) << log;
}

}  // namespace
