// The bounds that codegen/math.h states, against libm in double precision.
#include "codegen/codegen.h"
#include "codegen/math.h"
#include "support.h"

#include <gtest/gtest.h>

#include <cmath>

using namespace gptc;
using namespace gptc::kir;

namespace {

constexpr int64_t span = 1 << 16;

class MathFunction {
public:
  MathFunction(UnaryOp op, const Target &t) : jit(t, "") {
    Buffer x = makeBuffer("x", DType::f32, Storage::global, span);
    Buffer y = makeBuffer("y", DType::f32, Storage::global, span, true);
    Var i = makeVar("i");
    Kernel k{
        "math", {x, y}, {loop(LoopKind::vector, i, imm(span), {store(y, ref(i), unary(op, load(x, ref(i))))}, 16)}};
    phase = jit.compile({&k})[0].phases[0];
  }
  void operator()(const std::vector<float> &x, std::vector<float> &y) const {
    void *params[] = {const_cast<float *>(x.data()), y.data()};
    phase.run(params, 0, 1);
  }

private:
  Jit jit;
  CompiledPhase phase;
};

/// Compares about four million inputs, spread over all bit patterns.
void check(UnaryOp op, double (*exact)(double), double maxUlp, const Target &t = hostTarget(1),
           float domain = INFINITY) {
  MathFunction f(op, t);
  std::vector<float> x(span), y(span);
  const uint64_t stride = 1021;
  for (uint64_t from = 0; from < uint64_t(1) << 32; from += stride * span) {
    for (int64_t i = 0; i < span; ++i)
      x[i] = std::bit_cast<float>(uint32_t(from + stride * i));
    f(x, y);
    for (int64_t i = 0; i < span; ++i) {
      double r = exact(x[i]);
      if (!(std::fabs(x[i]) <= domain) && domain < INFINITY)
        r = NAN;
      float rounded = float(r);
      if (rounded != rounded || rounded == 0 || std::isinf(rounded)) {
        // The last finite value and infinity are neighbours.
        bool near = std::isinf(rounded) && !std::isinf(r) && std::fabs(y[i]) > 0x1.fffffcp127;
        ASSERT_TRUE(test::sameNumber(y[i], rounded) || near) << x[i] << " gave " << y[i] << ", not " << rounded;
        continue;
      }
      double ulp = std::ldexp(1.0, std::max(std::ilogb(rounded), -126) - 23);
      ASSERT_LE(std::fabs(y[i] - r) / ulp, maxUlp) << x[i] << " gave " << y[i] << ", not " << r;
    }
  }
}

}  // namespace

TEST(Math, Exp) { check(UnaryOp::exp, std::exp, 1); }
TEST(Math, Exp2) { check(UnaryOp::exp2, std::exp2, 1); }
TEST(Math, Log) { check(UnaryOp::log, std::log, 1); }
TEST(Math, Tanh) { check(UnaryOp::tanh, std::tanh, 2.5); }
TEST(Math, Sin) { check(UnaryOp::sin, std::sin, 1, hostTarget(1), 0x1p40f); }
TEST(Math, Cos) { check(UnaryOp::cos, std::cos, 1, hostTarget(1), 0x1p40f); }

TEST(Math, SameBitsOnEveryISA) {
  for (UnaryOp op : {UnaryOp::exp, UnaryOp::exp2, UnaryOp::log, UnaryOp::tanh, UnaryOp::sin, UnaryOp::cos}) {
    MathFunction wide(op, hostTarget(1)), narrow(op, test::maskedTarget("-avx512f"));
    std::vector<float> x(span), a(span), b(span);
    for (int64_t i = 0; i < span; ++i)
      x[i] = std::bit_cast<float>(uint32_t(i * 65537));
    wide(x, a);
    narrow(x, b);
    for (int64_t i = 0; i < span; ++i)
      ASSERT_TRUE(test::sameNumber(a[i], b[i])) << x[i];
  }
}

TEST(Math, NoCallLeavesAnF32Kernel) {
  Buffer x = makeBuffer("x", DType::f32, Storage::global, 16),
         y = makeBuffer("y", DType::f32, Storage::global, 16, true);
  for (int op = 0; op < kir::numUnaryOps; ++op) {
    if (UnaryOp(op) == UnaryOp::not_)
      continue;
    Var i = makeVar("i");
    Kernel k{
        "f", {x, y}, {loop(LoopKind::vector, i, imm(16), {store(y, ref(i), unary(UnaryOp(op), load(x, ref(i))))}, 16)}};
    std::string ir = emitLLVM(k, hostTarget(1), false);
    for (const char *name : {"exp", "log", "tanh", "sin", "cos"})
      EXPECT_EQ(ir.find(std::string("@llvm.") + name), std::string::npos) << ir;
  }
}
