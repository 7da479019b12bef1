// One step of training against PyTorch in float64, on the same weights and tokens. Skipped where PyTorch is missing.
#include "tests/support/harness.h"
#include "tests/support/oracles.h"

#include <fmt/format.h>

#include <cstdio>

using namespace e2e;
using namespace gptc::test;

namespace {

constexpr int blockSize = 16;

struct Case {
  const char *name;
  int heads;
  const char *activation;
  std::vector<std::string> settings;
};

/// Exactly one window, so that every sequence of every batch is known.
std::string oneWindow() {
  std::string window;
  for (int i = 0; i <= blockSize; ++i) {
    window += char((i * i * 7 + i * 3) % 61);
    window += '\0';
  }
  return window;
}

struct Torch : ::testing::TestWithParam<Case> {
  Workplace w;
};

TEST_P(Torch, LossAndEveryGradient) {
  writeFile(w.path("window.bin"), oneWindow());
  std::vector<std::string> settings = {fmt::format("model.block_size={}", blockSize),
                                       fmt::format("model.n_head={}", GetParam().heads),
                                       "model.dropout=0.0",
                                       fmt::format("train.global_batch_tokens={}", 4 * blockSize),
                                       "train.micro_batch=2",
                                       "train.steps=3",
                                       "train.grad_clip=1.0",
                                       "optimizer.betas=[0.9, 0.95]",
                                       "checkpoint.every=1",
                                       "checkpoint.keep=3",
                                       "eval.every=0",
                                       "log.every=1",
                                       fmt::format("data.train='{}'", w.path("window.bin"))};
  settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
  const std::string plan = w.compile("plan", settings);
  Result trained = w.gptrun({plan, "--out-dir", w.path("out")});
  ASSERT_EQ(trained.code, 0) << trained.output;

  const std::string at = w.path("out/checkpoints/step-0000000");
  const Compared r =
      compareBy("tests/e2e/torch_compare.py",
                fmt::format("'{}1' '{}2' '{}' '{}' {} 0.9 1.0 1e-5 1e-5 {}", at, at, w.path("out/log.jsonl"),
                            w.path("window.bin"), GetParam().heads, GetParam().activation));
  if (r.isMissing())
    GTEST_SKIP() << "no Python with PyTorch and NumPy: " << r.said;
  EXPECT_EQ(r.code, 0) << r.said;
  std::printf("%s", r.said.c_str());
}

INSTANTIATE_TEST_SUITE_P(
    Models, Torch,
    ::testing::Values(
        Case{"gpt2", 2, "gelu_tanh", {"model.tie_embeddings=true", "model.bias=true"}},
        Case{"gpt2_untied", 2, "gelu_tanh", {"model.tie_embeddings=false", "model.bias=false"}},
        Case{"llama",
             4,
             "swiglu",
             {"model.norm=rmsnorm", "model.activation=swiglu", "model.position=rope", "model.bias=false",
              "model.tie_embeddings=false", "model.n_kv_head=2"}},
        Case{"bloom",
             3,
             "geglu",
             {"model.n_embd=36", "model.n_kv_head=1", "model.position=alibi", "model.embedding_norm=true",
              "model.activation=geglu"}},
        Case{"alibi_five_heads", 5, "relu2", {"model.n_embd=40", "model.position=alibi", "model.activation=relu2"}}),
    [](const auto &info) { return info.param.name; });

struct Optimizer {
  const char *name;
  std::vector<std::string> settings;
};

struct TorchOptimizer : ::testing::TestWithParam<Optimizer> {
  Workplace w;
};

// Ten steps from a checkpoint of ours, its moments included.
TEST_P(TorchOptimizer, TenSteps) {
  writeFile(w.path("window.bin"), oneWindow());
  std::vector<std::string> settings = {fmt::format("model.block_size={}", blockSize),
                                       "model.n_head=2",
                                       "model.dropout=0.0",
                                       fmt::format("train.global_batch_tokens={}", 2 * blockSize),
                                       "train.micro_batch=2",
                                       "train.steps=11",
                                       "train.grad_clip=1.0",
                                       "optimizer.schedule=constant",
                                       "optimizer.warmup_steps=0",
                                       "optimizer.weight_decay=0.1",
                                       "checkpoint.every=1",
                                       "checkpoint.keep=11",
                                       "eval.every=0",
                                       fmt::format("data.train='{}'", w.path("window.bin"))};
  settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
  const std::string plan = w.compile("plan", settings);
  Result trained = w.gptrun({plan, "--out-dir", w.path("out")});
  ASSERT_EQ(trained.code, 0) << trained.output;
  const std::string at = w.path("out/checkpoints/step-000000");
  const Compared r = compareBy("tests/e2e/torch_optimizers.py",
                               fmt::format("'{}01' '{}11' '{}' {}", at, at, w.path("window.bin"), GetParam().name));
  if (r.isMissing() || r.code == 78)
    GTEST_SKIP() << "no Python with NumPy and a PyTorch that has it: " << r.said;
  EXPECT_EQ(r.code, 0) << r.said;
  std::printf("%s", r.said.c_str());
}

INSTANTIATE_TEST_SUITE_P(
    Names, TorchOptimizer,
    ::testing::Values(
        Optimizer{"adamw",
                  {"optimizer.name=adamw", "optimizer.lr=0.001", "optimizer.betas=[0.9, 0.95]", "optimizer.eps=1e-8"}},
        Optimizer{"sgd", {"optimizer.name=sgd", "optimizer.lr=0.05"}},
        Optimizer{"nesterov", {"optimizer.name=sgd", "optimizer.lr=0.05", "optimizer.nesterov=true"}},
        Optimizer{"adafactor",
                  {"optimizer.name=adafactor", "optimizer.lr=0.01", fmt::format("optimizer.eps={}", 0x1p-23)}}),
    [](const auto &info) { return info.param.name; });

}  // namespace
