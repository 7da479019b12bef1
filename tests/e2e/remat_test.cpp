// What is computed again in the backward part changes memory and time, and no bit of the result.
#include "tests/support/harness.h"

#include "runtime/plan/plan.h"

#include <algorithm>
#include <filesystem>

using namespace e2e;

namespace {

struct Remat : ::testing::TestWithParam<std::vector<std::string>> {
  struct Trained {
    int64_t arena;
    std::string state;
    std::vector<std::string> log;
  };
  Trained train(const std::string &remat) {
    std::vector<std::string> settings = GetParam();
    settings.insert(settings.end(), {"model.n_layer=3", "train.steps=3", "compile.remat=" + remat});
    std::string plan = w.compile("plan-" + remat, settings), out = w.path("out-" + remat);
    Result r = w.gptrun({plan, "--out-dir", out});
    EXPECT_EQ(r.code, 0) << r.output;
    return {gptc::loadPlan(plan).planned->attrs.getInt("arena_bytes"), w.finalState(out), logLines(out)};
  }
  Workplace w;
};

TEST_P(Remat, SameBitsInLessMemory) {
  Trained none = train("none"), full = train("full");
  ASSERT_FALSE(none.state.empty());
  EXPECT_TRUE(none.state == full.state);
  EXPECT_EQ(none.log, full.log);
  EXPECT_LT(full.arena, none.arena);
  // Budgets in between are kept, and the smaller ones take no more than the larger ones.
  int64_t before = none.arena;
  for (int eighths : {7, 4, 1}) {
    const int64_t budget = full.arena + (none.arena - full.arena) * eighths / 8;
    Trained t = train(std::to_string(budget) + "B");
    EXPECT_LE(t.arena, budget);
    EXPECT_LE(t.arena, before);
    EXPECT_TRUE(none.state == t.state) << "a budget of " << budget;
    EXPECT_EQ(none.log, t.log);
    before = t.arena;
  }
}

/// The classifier in chunks, which a budget takes only where the logits are large.
TEST_P(Remat, ChunksOfTheClassifier) {
  Trained whole = train("none");
  const std::string dump = w.path("dump");
  std::vector<std::string> compile = {"compile", w.modelFile(), "-o", w.path("plan"), "--dump-dir", dump};
  std::vector<std::string> settings = GetParam();
  settings.insert(settings.end(), {"model.n_layer=3", "train.steps=3", "compile.remat=none"});
  for (const std::string &s : settings)
    compile.insert(compile.end(), {"--set", s});
  ASSERT_EQ(w.gptc(compile).code, 0);
  std::string ordered;
  for (const auto &entry : std::filesystem::directory_iterator(dump))
    if (entry.path().string().find("-order.gir") != std::string::npos)
      ordered = entry.path().string();
  const int chunks = std::find(settings.begin(), settings.end(), "train.micro_batch=2") != settings.end() ? 2 : 4;
  Result r = w.run("gptc-opt", {ordered, "--passes=chunk-classifier{chunks=" + std::to_string(chunks) + "}"});
  ASSERT_EQ(r.code, 0) << r.output;
  // One sequence cannot be cut, and gradients in bf16 are not put together from pieces: then nothing changes.
  const bool canBeCut = std::find(settings.begin(), settings.end(), "train.micro_batch=1") == settings.end() &&
                        settings[0] != "precision.compute=bf16";
  ASSERT_EQ(r.output.find("unslice") != std::string::npos, canBeCut) << r.output;
  if (!canBeCut) {
    EXPECT_EQ(r.output, readFile(ordered));
    return;
  }
  writeFile(w.path("chunks.gir"), r.output);
  r = w.gptc({"compile", w.path("chunks.gir"), "-o", w.path("chunks"), "--set", "data.train=" + w.path("train.bin"),
              "--set", "data.val=" + w.path("val.bin")});
  ASSERT_EQ(r.code, 0) << r.output;
  r = w.gptrun({w.path("chunks"), "--out-dir", w.path("out-chunks"), "--steps", "3"});
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_TRUE(whole.state == w.finalState(w.path("out-chunks")));
}

INSTANTIATE_TEST_SUITE_P(
    Models, Remat,
    testing::Values(std::vector<std::string>{"model.dropout=0.2"},
                    std::vector<std::string>{"model.dropout=0.1", "model.tie_embeddings=false", "model.bias=false",
                                             "train.micro_batch=1"},
                    std::vector<std::string>{"model.dropout=0", "model.norm=rmsnorm", "train.micro_batch=2"},
                    std::vector<std::string>{"precision.compute=bf16", "model.norm=rmsnorm", "model.activation=swiglu",
                                             "model.position=rope", "model.dropout=0.1"},
                    std::vector<std::string>{"precision.compute=bf16", "precision.fp8=all"}));

}  // namespace
