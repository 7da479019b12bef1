// Gradients against finite differences, and micro-batches against the whole batch. (That not even a bit differs can
// only be seen in kernels, since the interpreter does not keep the order of sums; here it is seen in the attributes and
// in lit tests.)
#include "small_gpt.h"

#include "support/diagnostics.h"

#include <cmath>

namespace gptc::test {
namespace {

class Autodiff : public testing::TestWithParam<SmallGpt> {};

TEST_P(Autodiff, MatchesFiniteDifferences) {
  SmallGpt o = GetParam();
  auto forward = smallGpt(o);
  ASSERT_EQ(verify(*forward), std::vector<std::string>());
  auto joint = forward->clone();
  runPasses(*joint, "autodiff");
  ASSERT_TRUE(joint->function("train_step"));
  EXPECT_FALSE(joint->function("forward"));

  StateMap state = initialState(*forward);
  std::vector<Tensor> args = {tokens(o, 0, o.batch, false), tokens(o, 0, o.batch, true), scalar(3, DType::i64)};
  const double valid = validTokens(o, o.batch);
  auto loss = [&] { return interpret(*forward->function("forward"), args, state)[0].data[0] / valid; };
  std::vector<Tensor> all = args;
  all.push_back(scalar(valid, DType::f32));
  std::vector<Tensor> results = interpret(*joint->function("train_step"), all, state);
  EXPECT_DOUBLE_EQ(results[0].data[0], loss());

  size_t next = 1;
  for (const auto &s : forward->states) {
    if (s->attrs.getString("kind") != "param")
      continue;
    ASSERT_LT(next, results.size());
    const Tensor &gradient = results[next++];
    ASSERT_EQ(gradient.type, s->type) << s->name;
    double worst = 0, norm = 0;
    for (size_t i = 0; i < gradient.data.size(); ++i) {
      double &x = state[s->name].data[i];
      const double kept = x, h = 1e-4;
      // Two central differences and Richardson's step: an error of order h^4.
      double d[2];
      for (int k = 0; k < 2; ++k) {
        double step = h * (k + 1);
        x = kept + step;
        double up = loss();
        x = kept - step;
        d[k] = (up - loss()) / (2 * step);
      }
      x = kept;
      double numeric = (4 * d[0] - d[1]) / 3;
      worst = std::max(worst, std::fabs(numeric - gradient.data[i]));
      norm = std::max(norm, std::fabs(numeric));
    }
    EXPECT_GT(norm, 0) << s->name;
    EXPECT_LE(worst, 1e-6 * norm) << s->name;
  }
  EXPECT_EQ(next, results.size());
}

/// Everything a step leaves behind, for exact comparison. Accumulators are left out: they exist in one form only, and
/// must be zero.
std::map<std::string, std::vector<double>> remains(const StateMap &state) {
  std::map<std::string, std::vector<double>> all;
  for (const auto &s : state) {
    if (s.getKey().starts_with("grad.") || s.getKey() == "nll_acc") {
      for (double v : s.getValue().data)
        EXPECT_EQ(v, 0) << s.getKey().str();
      continue;
    }
    all[s.getKey().str()] = s.getValue().data;
  }
  return all;
}

TEST_P(Autodiff, MicroBatchesMakeTheSameStep) {
  std::map<std::string, std::vector<double>> expected;
  std::vector<std::vector<double>> expectedResults;
  for (int64_t micro : {4, 2, 1}) {
    SmallGpt o = GetParam();
    o.batch = micro;
    o.accumulate = 4 / micro;
    auto m = smallGpt(o);
    runPasses(*m, "canonicalize,cse,dce,autodiff,optimizer,canonicalize,cse,dce");
    EXPECT_EQ(m->function("train_step") != nullptr, micro == 4);
    StateMap state = initialState(*m);
    std::vector<std::vector<double>> results;
    for (int step = 0; step < 2; ++step)
      for (const Tensor &t : trainStep(*m, o, 4, state))
        results.push_back(t.data);
    EXPECT_EQ(state["step"].data[0], 2);
    auto now = remains(state);
    if (expected.empty()) {
      expected = now;
      expectedResults = results;
    }
    auto expectClose = [&](const std::vector<double> &a, const std::vector<double> &b, const std::string &what) {
      ASSERT_EQ(a.size(), b.size()) << what;
      for (size_t i = 0; i < a.size(); ++i)
        EXPECT_NEAR(a[i], b[i], 1e-12 + 1e-9 * std::fabs(b[i])) << what << " [" << i << "], micro-batch " << micro;
    };
    ASSERT_EQ(results.size(), expectedResults.size());
    for (size_t i = 0; i < results.size(); ++i)
      expectClose(results[i], expectedResults[i], "result");
    EXPECT_EQ(now.size(), expected.size());
    for (const auto &[name, data] : expected)
      expectClose(now[name], data, name);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Autodiff,
    testing::Values(SmallGpt{}, SmallGpt{.tied = false, .bias = false}, SmallGpt{.dropout = 0.25},
                    SmallGpt{.decomposed = true}, SmallGpt{.bias = false, .rmsnorm = true},
                    SmallGpt{.width = 8, .tied = false, .bias = false, .rmsnorm = true, .rope = true, .gated = true},
                    SmallGpt{.dropout = 0.25, .alibi = true, .causal = false},
                    SmallGpt{.decomposed = true, .alibi = true}));

TEST(AutodiffFold, NeverSpansTwoSequences) {
  SmallGpt o;
  o.bias = true;
  o.block = 6;
  auto m = smallGpt(o);
  m->attrs.set("fold", int64_t(4));
  runPasses(*m, "autodiff");
  int sums = 0;
  for (const Op &op : m->function("train_step")->body) {
    bool overTokens = op.is(OpKind::layernorm_grad_params) || (op.is(OpKind::matmul) && op.attrs.getBool("ta"));
    if (op.is(OpKind::reduce_sum)) {
      bool positions = op.attrs.getInt("lead") == 1;  // the position table: one row per sequence
      EXPECT_EQ(op.attrs.getInt("fold"), 2 - positions) << print(op);
    }
    if (overTokens) {
      EXPECT_EQ(op.attrs.getInt("fold"), 2) << print(op);  // gcd(4, 6)
      ++sums;
    }
  }
  EXPECT_EQ(sums, 6);
}

std::unique_ptr<Module> parse(const char *text) {
  auto m = parseModule(text, "test.gir");
  EXPECT_EQ(verify(*m), std::vector<std::string>());
  return m;
}

std::string messageOf(const char *text, const char *passes) {
  auto m = parse(text);
  try {
    runPasses(*m, passes);
  } catch (const UserError &e) {
    return e.diagnostics[0].message;
  }
  return "";
}

TEST(AutodiffErrors, AreUserErrors) {
  EXPECT_NE(messageOf("func @forward(%x: f32[4]) -> (f32[4]) { return %x }", "autodiff").find("one float scalar"),
            std::string::npos);
  EXPECT_NE(messageOf("func @forward(%x: f32[]) -> (f32[]) { return %x }", "autodiff").find("no parameter"),
            std::string::npos);
  EXPECT_NE(messageOf(R"(
    state @p : f32[] {kind="param"}
    func @forward(%x: f32[]) -> (f32[]) {
      %0 = read @p : f32[]
      write @p, %x
      return %0
    })",
                      "autodiff")
                .find("may not write"),
            std::string::npos);
  // The gradient of @p is %x, which no sum over tokens makes the same for every micro-batch.
  EXPECT_NE(messageOf(R"(
    module {accumulate=2} {
      state @p : f32[] {kind="param"}
      func @forward(%x: f32[]) -> (f32[]) {
        %0 = read @p : f32[]
        %1 = mul %0, %x : f32[]
        return %1
      }
    })",
                      "autodiff")
                .find("without a sum over tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace gptc::test
