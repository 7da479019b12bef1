// Transcendental functions of f32 as kernel expressions. The kernel makes no calls, all lanes do the same work, and all
// emitters give the same bits, because every operator in the expressions is correctly rounded.
//
// Errors, in units in the last place of the correctly rounded result, over all f32 inputs
// (tests/unit/codegen/math_test.cpp):
//   exp < 1, exp2 < 1, log < 1, tanh < 2.5, sin and cos < 1 for |x| <= 2^40 (NaN beyond).
// Overflow gives infinity, underflow goes through the denormals to zero, NaN stays NaN.
#pragma once

#include "ir/kernel/kernel.h"

namespace gptc {

/// y = f(x). `result` is f(x) as an expression of the variable `x`.
struct MathExpansion {
  kir::Var x;
  kir::Expr result;
  /// For exp2 only: the result is also mantissa * 2^n, rounded once, where n is x rounded to the nearest integer, ties
  /// to even. `mantissa` is an expression of the variable `fraction`, which is x - n. A CPU with instructions for
  /// `fraction` and the scaling gets the same bits as from `result`.
  kir::Var fraction;
  kir::Expr mantissa;
};

/// The expansion of `op`; its `result` is null if the operator needs none (sqrt, neg, ...). Built once per process.
/// Safe to call from any thread.
const MathExpansion &expandMath(kir::UnaryOp op);

}  // namespace gptc
