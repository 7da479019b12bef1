// With parallel.logical_tensor, ranks along "tensor" change no bit of what their plans compute: whatever parts of a
// model share heads and hidden features, in any precision, with any micro-batch and ZeRO stage.
#include "tests/support/rank_threads.h"

#include "ir/mesh.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"
#include "tests/support/whole_run.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

namespace gptc {
namespace {

using Settings = std::vector<std::string>;

constexpr int steps = 5;

struct Form {
  const char *name;
  Settings settings;
  int64_t parts = 4;
  std::string compute = "fp32", optimizer = "adamw";
};

const std::vector<Form> forms = {
    {"gpt2", {"model.n_layer=2", "model.n_head=4"}},  // tied embeddings, biases, dropout in attention
    {"llama",
     {"model.norm=rmsnorm", "model.activation=swiglu", "model.position=rope", "model.bias=false", "model.n_head=8",
      "model.n_kv_head=4", "model.ffn_dim=96", "model.tie_embeddings=false", "model.n_layer=2"}},
    {"two_parts",
     {"model.norm=rmsnorm", "model.activation=geglu", "model.position=rope", "model.n_head=4", "model.n_kv_head=2",
      "model.ffn_dim=20"},
     2},
    // Parts of an odd number of columns, of which bf16 takes two at a time.
    {"odd_heads", {"model.n_head=4", "model.head_dim=5", "model.ffn_dim=12"}, 4, "bf16"},
    {"odd_groups",
     {"model.n_head=8", "model.n_kv_head=4", "model.head_dim=3", "model.ffn_dim=20", "model.activation=swiglu"},
     4,
     "bf16"},
    {"norms_of_heads",
     {"model.norm=rmsnorm", "model.position=rope", "model.qk_norm=head", "model.n_head=8", "model.n_kv_head=4"}},
    {"alibi", {"model.position=alibi", "model.n_head=4"}},
    // One input of both blocks: its gradient adds products of packed and of plain columns.
    {"side_by_side",
     {"model.parallel_residual=true", "model.shared_norm=true", "model.position=rope", "model.n_head=4"}},
    {"gated_low",
     {"model.activation=swiglu", "model.ffn_dim=96", "model.n_head=4", "precision.residual=compute"},
     4,
     "bf16"},
    {"sgd", {"model.n_head=4"}, 4, "fp32", "sgd"},
};

RankCut cutOf(const Form &f, int64_t tensor, bool logical = true) {
  RankCut c;
  c.tensor = tensor;
  c.microBatches = 4;
  c.compute = f.compute;
  c.optimizer = f.optimizer;
  c.settings = f.settings;
  if (logical)
    c.settings.push_back(fmt::format("parallel.logical_tensor={}", f.parts));
  return c;
}

/// The name of the first state that differs, or "losses"; "" if all bits are the same.
std::string firstDifference(const RanksOutcome &a, const RanksOutcome &b) {
  if (a.losses != b.losses)
    return "losses";
  if (a.states.size() != b.states.size())
    return "the number of states";
  for (const auto &[name, bytes] : a.states)
    if (const auto it = b.states.find(name); it == b.states.end() || it->second != bytes)
      return name;
  return "";
}

class LogicalTensor : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Forms, LogicalTensor, testing::Range(0, int(forms.size())),
                         [](const auto &info) { return std::string(forms[info.param].name); });

TEST_P(LogicalTensor, AnyNumberOfRanksGivesTheSameBits) {
  const Form &f = forms[GetParam()];
  const RanksOutcome alone = train(cutOf(f, 1), steps);
  EXPECT_LT(alone.losses.back(), alone.losses.front()) << "it learns nothing";
  for (int64_t tensor = 2; tensor <= f.parts; tensor *= 2)
    EXPECT_EQ(firstDifference(train(cutOf(f, tensor), steps), alone), "") << tensor << " ranks";
}

// Else the test above shows nothing.
TEST_P(LogicalTensor, WithoutItTheyDiffer) {
  const Form &f = forms[GetParam()];
  EXPECT_NE(firstDifference(train(cutOf(f, f.parts, false), steps), train(cutOf(f, 1, false), steps)), "");
}

// As without parts: neither the micro-batch nor ranks along "data" change a bit, in any stage.
TEST(LogicalTensorMesh, DataRanksAndStagesGiveTheSameBits) {
  test::OneIn some(3);
  for (int form : {0, 1}) {
    const Form &f = forms[form];
    const RanksOutcome alone = train(cutOf(f, 1), steps);
    struct Mesh {
      int64_t data, stage, microBatches, tensor;
    };
    for (const Mesh &m : {Mesh{1, 0, 8, 1},
                          {1, 0, 8, 2},
                          {2, 0, 4, 2},
                          {2, 1, 2, 2},
                          {2, 2, 2, 1},
                          {2, 3, 2, 2},
                          {4, 3, 2, 1},
                          {2, 1, 2, 4}}) {
      if (some.skips())
        continue;
      RankCut c = cutOf(f, m.tensor);
      c.data = m.data, c.stage = m.stage, c.microBatches = m.microBatches;
      EXPECT_EQ(firstDifference(train(c, steps), alone), "")
          << f.name << ", data " << m.data << ", stage " << m.stage << ", " << m.microBatches
          << " micro-batches, tensor " << m.tensor;
    }
  }
}

TEST(LogicalTensorMesh, WithoutAccumulationToo) {
  RankCut one = cutOf(forms[0], 1), two = cutOf(forms[0], 2);
  one.microBatches = two.microBatches = 1;
  one.order = two.order = "fast";  // one shard
  EXPECT_EQ(firstDifference(train(one, steps), train(two, steps)), "");
}

TEST(LogicalTensorPlan, SaysWhatThePartsCost) {
  const std::unique_ptr<Module> one = plannedFor(cutOf(forms[0], 1)), four = plannedFor(cutOf(forms[0], 4));
  auto costOf = [](const Module &m) {
    for (const Decision &d : decisionsOf(m))
      if (d.pass == "logical-tensor")
        return d;
    return Decision();
  };
  const Decision alone = costOf(*one), shared = costOf(*four);
  EXPECT_EQ(alone.choice, "4, 4 on each rank");
  // In each layer two products forward, two backward; on four ranks each of these is one.
  EXPECT_NE(alone.note.find("8 products over features are 32"), std::string::npos) << alone.note;
  EXPECT_GT(alone.effect.traffic, 0);
  EXPECT_EQ(shared.choice, "4, 1 on each rank");
  EXPECT_EQ(shared.effect.traffic, 0) << shared.note;
  for (const Module *m : {one.get(), four.get()})
    for (const auto &s : m->states)
      EXPECT_FALSE(s->attrs.has("logical_parts")) << s->name;
  EXPECT_FALSE(Cut::of(*one->state("h.0.mlp.c_fc.weight"), "tensor"));
}

// One part is no part: the plan is that of a model that does not name them.
TEST(LogicalTensorPlan, OnePartChangesNothing) {
  for (int64_t tensor : {1, 2}) {
    RankCut plain = cutOf(forms[0], tensor, false), one = plain;
    one.settings.push_back("parallel.logical_tensor=1");
    EXPECT_EQ(print(*plannedFor(one)), print(*plannedFor(plain)));
  }
}

}  // namespace
}  // namespace gptc
