// One step of training against PyTorch in float64, on the same weights and tokens. Skipped where PyTorch is missing.
#include "harness.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

using namespace e2e;

namespace {

constexpr int blockSize = 16;

struct Case {
  const char *name;
  int heads;
  const char *activation;
  std::vector<std::string> settings;
};

struct Torch : ::testing::TestWithParam<Case> {
  Workplace w;
};

TEST_P(Torch, LossAndEveryGradient) {
  // Exactly one window, so that every sequence of every batch is known.
  std::string window;
  for (int i = 0; i <= blockSize; ++i) {
    window += char((i * i * 7 + i * 3) % 61);
    window += '\0';
  }
  writeFile(w.path("window.bin"), window);
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
  const int status = std::system(
      fmt::format("'{}/tests/e2e/torch_compare.py' '{}1' '{}2' '{}' '{}' {} 0.9 1.0 1e-5 1e-5 {} >'{}' 2>&1",
                  GPTC_SOURCE_DIR, at, at, w.path("out/log.jsonl"), w.path("window.bin"), GetParam().heads,
                  GetParam().activation, w.path("torch.txt"))
          .c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  const std::string said = readFile(w.path("torch.txt"));
  if (code == 77 || code == 126 || code == 127)
    GTEST_SKIP() << "no Python with PyTorch and NumPy: " << said;
  EXPECT_EQ(code, 0) << said;
  std::printf("%s", said.c_str());
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

}  // namespace
