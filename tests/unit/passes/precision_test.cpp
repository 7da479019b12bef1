// What low precision costs and keeps: gradients within a bound that is derived, moments that lose nothing on average,
// steps that overflow and change nothing.
#include "small_gpt.h"

#include "support/diagnostics.h"

#include <cmath>
#include <limits>

namespace gptc::test {
namespace {

/// Copies of parameters from the parameters, as the runtime fills them.
void fillCopies(const Module &m, StateMap &state) {
  for (const auto &s : m.states)
    if (s->attrs.getString("kind") == "low") {
      const Tensor p = state[s->attrs.getString("of")];
      const std::string n = std::to_string(p.data.size()), t = nameOf(s->type.dtype).str();
      auto one = parseModule("func @f(%x: f32[" + n + "]) -> (" + t + "[" + n + "]) { %y = cast %x {dtype=\"" + t +
                                 "\"} : " + t + "[" + n + "] return %y }",
                             "cast");
      StateMap none;
      std::vector<Tensor> args = {Tensor(Type(DType::f32, {Dim(int64_t(p.data.size()))}), p.data)};
      state[s->name].data = interpret(*one->functions[0], args, none)[0].data;
    }
}

std::string replaced(std::string text, const std::string &from, const std::string &to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// Models, each with both formats of the residual stream.
class LowPrecision : public testing::TestWithParam<std::tuple<SmallGpt, const char *>> {};

// Every value of bf16 is one that has been rounded: v (1 + e) with |e| <= u = 2^-8. To first order the gradient then
// moves by at most sum over all such elements of u |v| |dg/dv|. The same graph with f32 in place of bf16 rounds
// nothing; its derivatives are taken one element at a time. Terms of second order are u times smaller per pair: a
// factor of 2 covers them while the bound itself is small.
TEST_P(LowPrecision, GradientsStayWithinTheErrorOfTheirRoundings) {
  const auto &[o, residual] = GetParam();
  auto plain = smallGpt(o);
  runPasses(*plain, "autodiff,canonicalize,cse,dce");
  auto low = plain->clone();
  low->attrs.set("compute", std::string("bf16"));
  low->attrs.set("residual", std::string(residual));
  runPasses(*low, "precision");
  ASSERT_EQ(verify(*low), std::vector<std::string>());
  const std::string text = print(*low);
  EXPECT_NE(text.find("bf16"), std::string::npos);
  // A copy of a parameter in f32 is no copy; only the verifier of kinds would mind.
  auto exact = parseModule(replaced(text, "bf16", "f32"), "exact.gir");

  StateMap state = initialState(*exact);
  fillCopies(*exact, state);
  const std::vector<Tensor> args = {tokens(o, 0, o.batch, false), tokens(o, 0, o.batch, true), scalar(3, DType::i64),
                                    scalar(validTokens(o, o.batch), DType::f32)};
  auto flat = [](const std::vector<Tensor> &results) {
    std::vector<double> all;
    for (const Tensor &t : results)
      all.insert(all.end(), t.data.begin(), t.data.end());
    return all;
  };
  const Function &f = *exact->function("train_step");
  {
    StateMap s = initialState(*plain);
    const std::vector<double> a = flat(interpret(*plain->function("train_step"), args, s)),
                              b = flat(interpret(f, args, state));
    ASSERT_EQ(a, b) << "casts from f32 to f32 change nothing";
  }
  const std::vector<double> base = flat(interpret(f, args, state));

  // Ops of the two graphs stand in the same order.
  std::vector<std::pair<unsigned, unsigned>> rounded;
  unsigned position = 0;
  for (const Op &op : low->function("train_step")->body) {
    for (unsigned r = 0; r < op.numResults(); ++r)
      if (op.result(r)->type.dtype == DType::bf16 && !op.is(OpKind::reshape))
        rounded.push_back({position, r});
    ++position;
  }
  ASSERT_GT(rounded.size(), 10u);
  constexpr double u = 0x1p-8, h = 0x1p-20;
  std::vector<double> bound(base.size(), 0.0);
  for (auto [at, result] : rounded)
    for (size_t element = 0, count = 1; element < count; ++element) {
      unsigned n = 0;
      double moved = 0;
      std::vector<double> g = flat(interpret(f, args, state, [&](const Op &, llvm::ArrayRef<Tensor> results) {
        if (n++ != at)
          return;
        count = results[result].data.size();
        double &v = const_cast<double &>(results[result].data[element]);  // the interpreter binds it after this call
        moved = v * h;
        v += moved;
      }));
      for (size_t i = 0; moved != 0 && i < g.size(); ++i)
        bound[i] += std::fabs(g[i] - base[i]) / h * u;
    }

  StateMap lowState = initialState(*low);
  fillCopies(*low, lowState);
  const std::vector<double> got = flat(interpret(*low->function("train_step"), args, lowState));
  ASSERT_EQ(got.size(), base.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(std::fabs(got[i] - base[i]), 2 * bound[i] + 1e-12) << "element " << i << " of loss and gradients";
    worst = std::max(worst, std::fabs(got[i] - base[i]));
  }
  EXPECT_GT(worst, 0) << "something was rounded";
}

INSTANTIATE_TEST_SUITE_P(
    Models, LowPrecision,
    testing::Combine(
        testing::Values(SmallGpt{.block = 3, .width = 4}, SmallGpt{.batch = 1, .block = 3, .width = 4, .tied = false},
                        SmallGpt{.batch = 1, .block = 3, .width = 4, .bias = false, .rmsnorm = true},
                        SmallGpt{.batch = 1, .block = 3, .width = 4, .decomposed = true},
                        SmallGpt{.batch = 1, .block = 3, .width = 4, .rmsnorm = true, .rope = true, .gated = true},
                        SmallGpt{.batch = 1, .block = 3, .width = 4, .alibi = true, .causal = false}),
        testing::Values("fp32", "compute")));

TEST_P(LowPrecision, FusingKeepsEveryBit) {
  const auto &[o, residual] = GetParam();
  auto m = smallGpt(o);
  m->attrs.set("compute", std::string("bf16"));
  m->attrs.set("residual", std::string(residual));
  m->attrs.set("optimizer_state", std::string("bf16"));
  runPasses(*m, "autodiff,optimizer,canonicalize,cse,dce,precision");
  auto twoSteps = [&] {
    std::vector<std::vector<double>> all;
    StateMap state = initialState(*m);
    fillCopies(*m, state);
    for (int step = 0; step < 2; ++step)
      for (const Tensor &t : trainStep(*m, o, o.batch, state))
        all.push_back(t.data);
    for (const auto &s : m->states)
      all.push_back(state[s->name].data);
    // What a step leaves in a copy is what the runtime would fill it with.
    StateMap filled = state;
    fillCopies(*m, filled);
    for (const auto &s : m->states)
      if (s->attrs.getString("kind") == "low") {
        EXPECT_EQ(state[s->name].data, filled[s->name].data) << s->name;
      }
    return all;
  };
  const auto expected = twoSteps();
  const std::string once = print(*m);
  runPasses(*m, "precision");
  EXPECT_EQ(print(*m), once) << "done once, there is nothing left to do";
  for (const char *pass : {"canonicalize,cse,dce", "fuse", "order", "settle-writes", "plan-memory"}) {
    runPasses(*m, pass);
    EXPECT_EQ(twoSteps(), expected) << "after " << pass;
  }
}

// ---- moments in bf16 ------------------------------------------------------------------------------------------------

/// One adamw with beta1 = 0 on gradients `g`: the first moment is the rounded gradient.
std::vector<double> roundedMoments(double g, size_t n, double step, double seed, int stream) {
  const std::string t = "f32[" + std::to_string(n) + "]", l = "bf16[" + std::to_string(n) + "]";
  auto m =
      parseModule("func @f(%p: " + t + ", %m: " + l + ", %lr: f32[], %step: i64[], %one: f32[], %seed: i64[]) -> (" +
                      l + ") { %a, %b, %c = adamw %p, %p, %m, %m, %lr, %step, %one, %seed {beta1=0.0, stream=" +
                      std::to_string(stream) + "} : " + t + ", " + l + ", " + l + " return %b }",
                  "adamw");
  EXPECT_EQ(verify(*m), std::vector<std::string>());
  const Dim d(static_cast<int64_t>(n));
  std::vector<Tensor> args = {Tensor(Type(DType::f32, {d}), std::vector<double>(n, g)),
                              Tensor(Type(DType::bf16, {d})),
                              Tensor::scalar(0.1),
                              Tensor::scalar(step, DType::i64),
                              Tensor::scalar(1),
                              Tensor::scalar(seed, DType::i64)};
  StateMap none;
  return interpret(*m->functions[0], args, none)[0].data;
}

TEST(StochasticRounding, IsUnbiasedAndAFunctionOfItsCounters) {
  constexpr size_t n = 1 << 16;
  for (double fraction : {0.25, 0.5, 0.9}) {
    for (double sign : {1.0, -1.0}) {
      const double ulp = 0x1p-7, x = sign * (1 + fraction * ulp);
      const std::vector<double> r = roundedMoments(x, n, 7, 42, 3);
      double up = 0;
      for (double v : r) {
        ASSERT_TRUE(v == sign || v == sign * (1 + ulp)) << v;
        up += v != sign;
      }
      // Binomial: five standard deviations. The chance is a multiple of 2^-16.
      EXPECT_NEAR(up / n, fraction, 5 * std::sqrt(fraction * (1 - fraction) / n) + 0x1p-16);
      EXPECT_EQ(r, roundedMoments(x, n, 7, 42, 3));
      EXPECT_NE(r, roundedMoments(x, n, 8, 42, 3));
      EXPECT_NE(r, roundedMoments(x, n, 7, 43, 3));
      EXPECT_NE(r, roundedMoments(x, n, 7, 42, 4));
    }
  }
  // What bf16 holds stays as it is.
  EXPECT_EQ(roundedMoments(1.5, 100, 0, 1, 0), std::vector<double>(100, 1.5));
}

// ---- fp16 -----------------------------------------------------------------------------------------------------------

TEST(LossScaling, AnOverflowChangesNothingButTheScale) {
  SmallGpt o{.block = 3, .width = 4};
  auto m = smallGpt(o);
  m->attrs.set("compute", std::string("fp16"));
  m->addState("loss_scale", Type::scalar(DType::f32))->attrs =
      attrs({{"kind", std::string("counter")}, {"init", std::string("const")}, {"value", 0x1p16}});
  m->addState("good_steps", Type::scalar(DType::i64))->attrs = attrs({{"kind", std::string("counter")}});
  runPasses(*m, "autodiff,optimizer,canonicalize,cse,dce,precision");
  ASSERT_EQ(verify(*m), std::vector<std::string>());
  StateMap state = initialState(*m);
  fillCopies(*m, state);
  state["good_steps"].data[0] = 17;
  state["loss_scale"].data[0] = 0x1p24;  // gradients of the loss are beyond 65504
  const StateMap before = state;
  std::vector<Tensor> r = trainStep(*m, o, o.batch, state);
  ASSERT_EQ(r.size(), 4u);
  EXPECT_TRUE(std::isfinite(r[0].data[0]));
  EXPECT_FALSE(std::isfinite(r[1].data[0]));
  EXPECT_EQ(r[3].data[0], 0x1p24) << "the scale of this step";
  for (const auto &s : m->states) {
    const std::vector<double> &now = state[s->name].data, &old = before.lookup(s->name).data;
    if (s->name == "loss_scale")
      EXPECT_EQ(now[0], 0x1p23);
    else if (s->name == "good_steps")
      EXPECT_EQ(now[0], 0);
    else if (s->name == "step")
      EXPECT_EQ(now[0], old[0] + 1);
    else
      EXPECT_EQ(now, old) << s->name;
  }
  // At a scale that fits, the same step is that of f32 but for roundings: the scale itself leaves no trace.
  state["loss_scale"].data[0] = 0x1p10;
  state["good_steps"].data[0] = 1999;
  r = trainStep(*m, o, o.batch, state);
  EXPECT_EQ(state["loss_scale"].data[0], 0x1p11) << "doubled after 2000 good steps";
  EXPECT_EQ(state["good_steps"].data[0], 0);
  auto plain = smallGpt(o);
  runPasses(*plain, "autodiff,optimizer");
  StateMap plainState = initialState(*plain);
  plainState["step"].data[0] = 1;
  const std::vector<Tensor> p = trainStep(*plain, o, o.batch, plainState);
  // A scale that stayed would be a power of two.
  auto powerOfTwo = [](double ratio) { return std::round(std::log2(ratio)); };
  EXPECT_EQ(powerOfTwo(r[1].data[0] / p[1].data[0]), 0) << "the norm is that of the gradient, not of the scaled one";
  EXPECT_NE(state["wte"].data, before.lookup("wte").data);
  // AdamW would hide a factor left in the gradients; its moments do not.
  auto largest = [](const Tensor &t) {
    double most = 0;
    for (double v : t.data)
      most = std::max(most, std::fabs(v));
    return most;
  };
  EXPECT_EQ(powerOfTwo(largest(state["m.wte"]) / largest(plainState["m.wte"])), 0);
}

TEST(Precision, UnknownComputeIsAnError) {
  auto m = smallGpt({});
  m->attrs.set("compute", std::string("fp8"));
  EXPECT_THROW(runPasses(*m, "precision"), UserError);
}

}  // namespace
}  // namespace gptc::test
