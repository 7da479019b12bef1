// Every gradient rule against finite differences of the op's reference meaning, both in float64.
#include "one_op.h"

#include "ir/random.h"

#include <cmath>
#include <functional>
#include <limits>

namespace gptc::conformance {
namespace {

using Gradient = EachOp;
INSTANTIATE_TEST_SUITE_P(Ops, Gradient, ::testing::ValuesIn(allKinds()), kindName);

/// loss = sum over results r of <cotangent_r, r>, leaving out elements that are infinite.
struct Loss {
  const std::vector<Tensor> &cotangents;  // empty data: the result does not count
  double value = 0, magnitude = 0;
  Loss(const std::vector<Tensor> &cotangents, const std::vector<Tensor> &results) : cotangents(cotangents) {
    for (size_t r = 0; r < results.size(); ++r)
      for (size_t i = 0; i < cotangents[r].data.size(); ++i)
        if (std::isfinite(results[r].data[i])) {
          value += cotangents[r].data[i] * results[r].data[i];
          magnitude += std::fabs(cotangents[r].data[i] * results[r].data[i]);
        }
  }
};

/// Asks the op for gradients with respect to a loss that depends on the results marked in `used`.
std::vector<Value *> applyRule(OneOp &one, const std::vector<bool> &used, std::vector<Value *> &cotangents) {
  Op *ret = one.f->body.back();
  Builder b(one.f->body, ret);
  cotangents.assign(one.op->numResults(), nullptr);
  for (unsigned r = 0; r < used.size(); ++r)
    if (used[r])
      cotangents[r] = one.f->body.addArg(one.op->result(r)->type);
  GradCtx ctx{b, *one.op, cotangents};
  return one.op->def().grad(ctx);
}

/// Which results have a gradient: a rule refuses a loss that depends on one that has none.
std::vector<bool> differentiable(const OneOp &one, const OpDef::Sample &sample) {
  std::vector<bool> yes(one.op->numResults(), false);
  for (unsigned r = 0; r < yes.size(); ++r) {
    if (!isFloat(one.op->result(r)->type.dtype))
      continue;
    OneOp trial = makeOneOp(one.op->def(), sample, 0);
    std::vector<bool> only(yes.size(), false);
    only[r] = true;
    std::vector<Value *> cotangents;
    try {
      applyRule(trial, only, cotangents);
      yes[r] = true;
    } catch (const UserError &e) {
      EXPECT_EQ(e.exitCode(), exitCodeOf(ErrorCode::GirInvalid));
    }
  }
  return yes;
}

/// A derivative by finite differences, with a bound of its error.
struct Difference {
  double value, error;
};

/// Derivative of `f` at 0 by the five-point formula, whose error is step^4/30 times the fifth derivative. The step is
/// halved until two of them agree: a fifteenth of their difference is then the error (twice that is allowed for), and
/// rounding of f, whose terms have this magnitude, contributes 3 eps magnitude / step.
Difference derivative(const std::function<double(double)> &f, double magnitude) {
  auto at = [&](double h) { return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h); };
  double step = 1e-3, previous = at(step);
  for (int halvings = 0;; ++halvings) {
    step /= 2;
    double now = at(step), truncation = std::fabs(now - previous) * 2 / 15;
    double rounding = 8 * std::numeric_limits<double>::epsilon() * magnitude / step;
    if (truncation <= rounding || halvings == 6)
      return {now, truncation + rounding};
    previous = now;
  }
}

void checkGradients(OneOp &one, const OpDef::Sample &sample, unsigned seed) {
  std::vector<bool> used = differentiable(one, sample);
  bool some = false;
  for (unsigned r = 0; r < used.size(); ++r)
    some |= used[r];
  bool floats = false;
  for (unsigned r = 0; r < used.size(); ++r)
    floats |= isFloat(one.op->result(r)->type.dtype);
  ASSERT_TRUE(some || !floats) << "no result can be differentiated";
  if (!some)
    return;

  std::vector<Value *> cotangentArgs;
  std::vector<Value *> grads = applyRule(one, used, cotangentArgs);
  ASSERT_EQ(grads.size(), one.op->numOperands());
  std::vector<Tensor> args = one.inputs, cotangents(used.size());
  for (unsigned r = 0; r < used.size(); ++r)
    if (used[r]) {
      cotangents[r] = normals(one.op->result(r)->type, 1000 + 10 * seed + r);
      args.push_back(cotangents[r]);
    }
  std::vector<Value *> returned;
  for (unsigned i = 0; i < grads.size(); ++i) {
    const Type &t = one.op->operand(i)->type;
    if (!grads[i]) {
      EXPECT_FALSE(i == 0 && isFloat(t.dtype)) << "the first operand has no gradient";
      continue;
    }
    EXPECT_TRUE(isFloat(t.dtype)) << "a gradient with respect to integers";
    EXPECT_EQ(grads[i]->type.str(), t.str()) << "gradient of operand " << i;
    returned.push_back(grads[i]);
  }
  Op *ret = one.f->body.back();
  ret->dropOperands();
  for (Value *v : returned)
    ret->addOperand(v);
  ASSERT_EQ(verify(*one.module), std::vector<std::string>()) << print(*one.f);
  StateMap none;
  std::vector<Tensor> computed = interpret(*one.f, args, none);

  double magnitude = Loss(cotangents, one.reference()).magnitude;
  auto lossAlong = [&](unsigned operand, const std::vector<std::pair<size_t, double>> &direction, double t) {
    std::vector<double> &data = one.inputs[operand].data, kept;
    for (auto [i, d] : direction) {
      kept.push_back(data[i]);
      data[i] += t * d;
    }
    double value = Loss(cotangents, one.reference()).value;
    for (size_t k = 0; k < direction.size(); ++k)
      data[direction[k].first] = kept[k];
    return value;
  };

  size_t next = 0;
  for (unsigned i = 0; i < grads.size(); ++i) {
    if (!grads[i])
      continue;
    const Tensor &g = computed[next++];
    double largest = 0;
    for (double v : g.data)
      largest = std::max(largest, std::fabs(v));
    // Every element of a small operand; some of a large one, and all of it along one random direction of length 1.
    size_t n = g.data.size(), tried = std::min<size_t>(n, 64);
    RandomKey pick = randomKey(seed, i, 5, 0);
    for (size_t k = 0; k < tried; ++k) {
      size_t e = n <= tried ? k : randomBits(pick, k) % n;
      Difference expected = derivative([&](double t) { return lossAlong(i, {{e, 1.0}}, t); }, magnitude);
      ASSERT_NEAR(g.data[e], expected.value,
                  1e-6 * std::max(std::fabs(expected.value), 1e-2 * largest) + expected.error)
          << "operand " << i << ", element " << e;
    }
    std::vector<std::pair<size_t, double>> direction;
    double dot = 0;
    for (size_t e = 0; e < n; ++e) {
      direction.push_back({e, randomNormal(pick, 1000 + e) / std::sqrt(double(n))});
      dot += direction[e].second * g.data[e];
    }
    Difference expected = derivative([&](double t) { return lossAlong(i, direction, t); }, magnitude);
    ASSERT_NEAR(dot, expected.value, 1e-6 * std::max(std::fabs(expected.value), largest) + expected.error)
        << "operand " << i << " as a whole";
  }
}

TEST_P(Gradient, MatchesFiniteDifferences) {
  const OpDef &d = def();
  if (!d.grad)
    return;  // Definition.IsComplete asks for the reason
  for (unsigned seed = 0; seed < numSeeds(); ++seed) {
    std::vector<OpDef::Sample> samples = d.samples(seed);
    for (size_t i = 0; i < samples.size(); ++i) {
      OneOp one = makeOneOp(d, samples[i], seed);
      SCOPED_TRACE(fmt::format("seed {}, sample {}: {}", seed, i, print(*one.f)));
      checkGradients(one, samples[i], seed);
      if (HasFatalFailure())
        return;
    }
  }
}

}  // namespace
}  // namespace gptc::conformance
