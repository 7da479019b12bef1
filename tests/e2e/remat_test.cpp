// What is computed again in the backward part changes memory and time, and no bit of the result.
#include "harness.h"

#include "runtime/plan.h"

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

INSTANTIATE_TEST_SUITE_P(Models, Remat,
                         testing::Values(std::vector<std::string>{"model.dropout=0.2"},
                                         std::vector<std::string>{"model.dropout=0.1", "model.tie_embeddings=false",
                                                                  "model.bias=false", "train.micro_batch=1"},
                                         std::vector<std::string>{"model.dropout=0", "model.norm=rmsnorm",
                                                                  "train.micro_batch=2"}));

}  // namespace
