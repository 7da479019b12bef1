// Transcendental functions of f32 as kernel expressions: no call leaves the kernel, every lane does the same work, and
// each emitter gives the same bits from the same expression (all operators in them are correctly rounded).
//
// Errors, in units in the last place of the correctly rounded result, over all f32 inputs
// (tests/unit/codegen/math_test.cpp):
//   exp < 1, exp2 < 1, log < 1, tanh < 2.5, sin and cos < 1 for |x| <= 2^40 (NaN beyond).
// Overflow gives infinity, underflow goes through the denormals to zero, NaN stays NaN.
#pragma once

#include "ir/kernel/kernel.h"

namespace gptc {

/// y = f(x): `result` holds references to `x`.
struct MathExpansion {
  kir::Var x;
  kir::Expr result;
  /// Of exp2: `mantissa` refers to `fraction`, which is x - n for the integer n next to x (the even one of two), and
  /// what 2^n multiplies, rounding once. The same bits where a CPU has instructions for both.
  kir::Var fraction;
  kir::Expr mantissa;
};

/// Null `result` where the operator needs no expansion (sqrt, neg, ...). Built once per operator; safe to call from any
/// thread.
const MathExpansion &expandMath(kir::UnaryOp op);

}  // namespace gptc
