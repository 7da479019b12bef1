// Ranks that train by themselves and meet in outer steps do what the paper says (DiLoCo, Douillard et al. 2023),
// written out here in plain C++.
#include "whole_ranks.h"

#include "ir/element.h"
#include "ir/facts.h"
#include "ir/plan_check.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace gptc::test {
namespace {

constexpr int64_t ranks = 2, every = 3;
constexpr const char *before = "canonicalize,cse,dce,pad-vocab{multiple=16},autodiff,optimizer",
                     *behind = "canonicalize,cse,dce,precision,partition";

struct Outer {
  double lr = 0.7, momentum = 0.9;
  const char *compute = "fp32";
};

SmallGpt model() {
  SmallGpt o;
  o.width = o.vocab = 8, o.dropout = 0.2;
  return o;
}

std::unique_ptr<Module> compiled(const Outer &outer, const std::string &more = "") {
  auto m = smallGpt(model());
  m->attrs.set("mesh_data", ranks);
  m->attrs.set("sync_every", every);
  m->attrs.set("outer_lr", outer.lr);
  m->attrs.set("outer_momentum", outer.momentum);
  m->attrs.set("compute", std::string(outer.compute));
  runPasses(*m, fmt::format("{},outer-steps,{}{}", before, behind, more));
  EXPECT_EQ(verify(*m), std::vector<std::string>());
  return m;
}

/// The same model, of a rank that meets nobody.
std::unique_ptr<Module> alone() {
  auto m = smallGpt(model());
  runPasses(*m, fmt::format("{},{}", before, behind));
  return m;
}

std::vector<StateMap> statesOf(const Module &m) {
  StateMap one = initialState(m);
  for (const auto &s : m.states)
    if (const std::string of = fact<&StateFacts::of>(*s); !of.empty())
      one[s->name].data = one[of].data;
  return std::vector<StateMap>(ranks, one);
}

/// What rank r reads in a step: sequences of its own, and how many targets they have.
std::vector<Tensor> batch(int64_t step, int64_t rank) {
  const SmallGpt o = model();
  const int64_t first = (step * ranks + rank) * o.batch;
  const Tensor targets = tokens(o, first, o.batch, true);
  const auto valid = std::count_if(targets.data.begin(), targets.data.end(), [](double v) { return v >= 0; });
  return {tokens(o, first, o.batch, false), targets, scalar(double(first), DType::i64),
          scalar(double(valid), DType::f32)};
}

void step(const Module &m, int64_t number, std::vector<StateMap> &states) {
  std::vector<std::vector<Tensor>> args;
  for (int64_t r = 0; r < ranks; ++r)
    args.push_back(batch(number, r));
  interpretRanks(*m.function("train_step"), args, states);
}

void outerStep(const Module &m, std::vector<StateMap> &states) {
  interpretRanks(*m.function("outer"), std::vector<std::vector<Tensor>>(ranks), states);
}

void expectNear(const Tensor &got, const std::vector<double> &expected, const std::string &what) {
  ASSERT_EQ(got.data.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(got.data[i], expected[i], 1e-12 * std::max(1.0, std::fabs(expected[i]))) << what << " " << i;
}

TEST(OuterSteps, DoWhatThePaperSays) {
  const Outer outer{.lr = 0.6, .momentum = 0.8};
  const auto m = compiled(outer), one = alone();
  std::vector<StateMap> states = statesOf(*m);
  std::vector<StateMap> expected(ranks, initialState(*one));
  std::map<std::string, std::vector<double>> anchors, moments;
  for (const auto &s : one->states)
    if (isTrained(*s)) {
      anchors[s->name] = expected[0][s->name].data;
      moments[s->name].resize(anchors[s->name].size());
    }
  for (int64_t number = 0; number < 3 * every; ++number) {
    step(*m, number, states);
    for (int64_t r = 0; r < ranks; ++r)
      interpret(*one->function("train_step"), batch(number, r), expected[size_t(r)]);
    EXPECT_NE(states[0]["fc.w"].data, states[1]["fc.w"].data) << "ranks that are said to be apart are not";
    if ((number + 1) % every)
      continue;
    outerStep(*m, states);
    for (auto &[name, anchor] : anchors) {
      std::vector<double> &moment = moments[name];
      for (size_t i = 0; i < anchor.size(); ++i) {
        double moved = 0;
        for (StateMap &rank : expected)
          moved += (anchor[i] - rank[name].data[i]) / ranks;
        moment[i] = outer.momentum * moment[i] + moved;
        anchor[i] -= outer.lr * (moved + outer.momentum * moment[i]);
      }
      for (StateMap &rank : expected)
        rank[name].data = anchor;
    }
  }
  for (int64_t r = 0; r < ranks; ++r) {
    StateMap &rank = states[size_t(r)];
    for (const auto &[name, anchor] : anchors) {
      EXPECT_EQ(rank[name].data, states[0][name].data) << name;
      EXPECT_EQ(rank["anchor." + name].data, rank[name].data) << name;
      expectNear(rank[name], anchor, name);
      expectNear(rank["outer." + name], moments[name], "outer." + name);
    }
    for (const auto &s : one->states)  // with the inner optimizer's moments, which are each rank's own
      expectNear(rank[s->name], expected[size_t(r)][s->name].data, s->name);
  }
}

TEST(OuterSteps, OfRateOneWithoutMomentumAreTheMean) {
  const auto m = compiled({.lr = 1, .momentum = 0});
  EXPECT_EQ(m->state("outer.fc.w"), nullptr);
  std::vector<StateMap> states = statesOf(*m);
  for (int64_t number = 0; number < every; ++number)
    step(*m, number, states);
  std::map<std::string, std::vector<double>> means;
  for (const auto &s : m->states)
    if (isTrained(*s))
      for (size_t i = 0; i < states[0][s->name].data.size(); ++i)
        means[s->name].push_back((states[0][s->name].data[i] + states[1][s->name].data[i]) / 2);
  outerStep(*m, states);
  for (const auto &[name, mean] : means)
    expectNear(states[1][name], mean, name);
}

// Products read copies in low precision, which an outer step must write as well.
TEST(OuterSteps, WriteLowCopiesToo) {
  const auto m = compiled({.compute = "bf16"});
  std::vector<StateMap> states = statesOf(*m);
  for (int64_t number = 0; number < every; ++number)
    step(*m, number, states);
  outerStep(*m, states);
  int copies = 0;
  for (const auto &s : m->states)
    if (kindOf(*s) == StateKind::low) {
      ++copies;
      std::vector<double> rounded = states[0][fact<&StateFacts::of>(*s)].data;
      for (double &v : rounded)
        v = roundTo(DType::bf16, v);
      EXPECT_EQ(states[0][s->name].data, rounded) << s->name;
    }
  EXPECT_GT(copies, 2);
}

TEST(OuterSteps, ArePlannedWithTheSameMeaning) {
  const auto m = compiled({}),
             planned = compiled({}, ",recompute-cheap,fuse,order,settle-writes,overlap-collectives,plan-memory");
  EXPECT_EQ(checkPlan(*planned), std::vector<std::string>());
  std::vector<StateMap> expected = statesOf(*m), got = expected;
  for (int64_t number = 0; number < every; ++number) {
    step(*m, number, expected);
    step(*planned, number, got);
  }
  outerStep(*m, expected);
  outerStep(*planned, got);
  for (const auto &s : m->states)
    for (int64_t r = 0; r < ranks; ++r)
      EXPECT_EQ(got[size_t(r)][s->name].data, expected[size_t(r)][s->name].data) << s->name;
}

// As pieces of what all ranks have, places of a padded vocabulary among them.
TEST(OuterSteps, CutMomentsByRanks) {
  const auto m = compiled({});
  const State &moment = *m->state("m.wte");
  EXPECT_EQ(moment.type.str(), "f32[8->16,8]");
  EXPECT_EQ(wholeType(moment).str(), "f32[32,8]");
  EXPECT_EQ(wholeType(*m->state("v.ln.g")).str(), "f32[16]");
  EXPECT_FALSE(isPiece(*m->state("outer.wte"))) << "the same on all ranks";
  EXPECT_FALSE(isPiece(*m->state("wte")));
}

TEST(OuterSteps, AreForRanksWithTheWholeModel) {
  const auto make = [] {
    auto m = alone();
    m->attrs.set("mesh_data", ranks);
    m->attrs.set("sync_every", every);
    return m;
  };
  expectWholeRanksAlone(make, "outer-steps", "sync_every = 3", ", which differ between ranks");
}

}  // namespace
}  // namespace gptc::test
