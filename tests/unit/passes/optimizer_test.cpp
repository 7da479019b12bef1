// Groups of parameters and the other optimizers, on a small GPT: what is trained, by how much, and what is held for it.
#include "small_gpt.h"

#include "support/diagnostics.h"

#include <cmath>
#include <functional>
#include <map>
#include <set>

namespace gptc::test {
namespace {

constexpr const char *passes = "canonicalize,cse,dce,autodiff,optimizer,canonicalize,cse,dce";

std::unique_ptr<Module> made(const SmallGpt &o, const std::string &optimizer,
                             const std::function<void(Module &)> &change = {}) {
  auto m = smallGpt(o);
  m->attrs.set("optimizer", optimizer);
  if (optimizer == "sgd")
    m->attrs.set("momentum", 0.9);
  if (change)
    change(*m);
  runPasses(*m, passes);
  EXPECT_EQ(verify(*m), std::vector<std::string>());
  return m;
}

std::set<std::string> momentsOf(const Module &m) {
  std::set<std::string> names;
  for (const auto &s : m.states)
    if (s->attrs.getString("kind") == "moment")
      names.insert(s->name);
  return names;
}

double lossAfter(const Module &m, const SmallGpt &o, int steps) {
  StateMap state = initialState(m);
  double loss = 0;
  for (int i = 0; i < steps; ++i)
    loss = trainStep(m, o, 2, state)[0].data[0];
  return loss;
}

TEST(Optimizers, LossFalls) {
  for (const char *optimizer : {"adamw", "sgd", "adafactor"}) {
    SmallGpt o;
    auto m = made(o, optimizer, [](Module &m) { m.attrs.set("lr", 0.05), m.attrs.set("schedule", "constant"); });
    EXPECT_LT(lossAfter(*m, o, 8), 0.97 * lossAfter(*m, o, 1)) << optimizer;
  }
}

TEST(Optimizers, AdafactorHoldsRowsAndColumns) {
  SmallGpt o;
  auto m = made(o, "adafactor");
  EXPECT_EQ(m->state("row.fc.w")->type.str(), "f32[6]");
  EXPECT_EQ(m->state("column.fc.w")->type.str(), "f32[12]");
  EXPECT_EQ(m->state("v.ln.g")->type.str(), "f32[6]");
  EXPECT_FALSE(m->state("m.fc.w"));
  EXPECT_FALSE(m->state("v.fc.w"));
}

TEST(Optimizers, PlainSgdHoldsNothing) {
  auto m = made({}, "sgd", [](Module &m) { m.attrs.set("momentum", 0.0); });
  EXPECT_EQ(momentsOf(*m), std::set<std::string>());
}

// All steps of a parameter with half the rate are half as long while nothing else differs: in the first step.
TEST(Groups, ScaleTheLearningRate) {
  for (const char *optimizer : {"adamw", "sgd", "adafactor"}) {
    auto change = [&](double factor, double decay) {
      SmallGpt o;
      auto m = made(o, optimizer, [&](Module &m) {
        m.state("fc.w")->attrs.set("lr_scale", factor);
        m.state("fc.w")->attrs.set("weight_decay", decay);
      });
      StateMap state = initialState(*m);
      const StateMap before = state;
      trainStep(*m, o, 2, state);
      std::map<std::string, double> moved;
      for (const char *name : {"fc.w", "proj.w"})
        for (size_t i = 0; i < state[name].data.size(); ++i)
          moved[name] += std::fabs(state[name].data[i] - before.find(name)->second.data[i]);
      return moved;
    };
    auto whole = change(1, 0), half = change(0.5, 0), decayed = change(1, 5);
    // Adafactor's rate is at most 1/sqrt(t) = 1: the schedule's 0.005 is below that.
    EXPECT_NEAR(half["fc.w"], 0.5 * whole["fc.w"], 1e-9 * whole["fc.w"]) << optimizer;
    EXPECT_EQ(half["proj.w"], whole["proj.w"]) << optimizer;
    EXPECT_GT(std::fabs(decayed["fc.w"] - whole["fc.w"]), 1e-3 * whole["fc.w"]) << optimizer;
  }
}

TEST(Groups, HaveBetasOfTheirOwn) {
  auto m = made({}, "adamw", [](Module &m) {
    m.state("fc.w")->attrs.set("beta1", 0.5);
    m.state("fc.w")->attrs.set("beta2", 0.75);
  });
  int own = 0, others = 0;
  for (const Op &op : m->function("train_step")->body)
    if (op.is(OpKind::adamw)) {
      const bool is = op.operand(0)->def->state == "fc.w";
      ++(is ? own : others);
      EXPECT_EQ(op.attrs.getFloat("beta1"), is ? 0.5 : 0.9);
      EXPECT_EQ(op.attrs.getFloat("beta2"), is ? 0.75 : 0.95);
    }
  EXPECT_EQ(own, 1);
  EXPECT_GT(others, 3);
}

TEST(Groups, FrozenParametersHaveNeitherGradientNorMoments) {
  for (int64_t accumulate : {1, 2})
    for (const char *optimizer : {"adamw", "sgd", "adafactor"}) {
      SmallGpt o;
      o.accumulate = accumulate;
      o.batch = 2 / accumulate;
      auto all = made(o, optimizer), m = made(o, optimizer, [](Module &m) {
                                       for (const char *name : {"wte", "wpe", "ln.g", "qkv.w"})
                                         m.state(name)->attrs.set("frozen", true);
                                     });
      for (const char *name : {"wte", "wpe", "ln.g", "qkv.w"})
        for (const char *of : {"m.", "v.", "momentum.", "row.", "column.", "grad."})
          EXPECT_FALSE(m->state(std::string(of) + name)) << of << name;
      auto sizeOfStep = [](const Module &m) {
        size_t n = 0;
        for (const auto &f : m.functions)
          n += f->body.size();
        return n;
      };
      EXPECT_LT(sizeOfStep(*m), sizeOfStep(*all)) << "dead gradients go";
      StateMap state = initialState(*m);
      const StateMap before = state;
      trainStep(*m, o, 2, state);
      for (const char *name : {"wte", "wpe", "ln.g", "qkv.w"})
        EXPECT_EQ(state[name].data, before.find(name)->second.data) << name;
      EXPECT_NE(state["fc.w"].data, before.find("fc.w")->second.data);
    }
}

}  // namespace
}  // namespace gptc::test
