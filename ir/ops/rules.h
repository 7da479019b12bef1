// What the op definitions of this folder share: shape rules with plain messages, costs, and inputs for the conformance suite.
#pragma once

#include "ir/diagnostics.h"
#include "ir/opdef.h"

#include <string>
#include <vector>

namespace gptc::ops {

/// Sets the message and yields false: `return fail(error, fmt::format(...))`.
bool fail(std::string &error, std::string message);

// ---- types ----------------------------------------------------------------------------------------------------------
/// True when `t` is a scalar or its dimensions (padding included) are the last ones of `full`.
bool broadcastsTo(const Type &t, const Type &full);
/// The dtype in which sums and row statistics of `t` are held: f32 for bf16 and f16, else its own.
DType statDType(DType t);
/// One element per row of x, in the dtype of statistics. x has at least one dimension.
Type rowStats(const Type &x);
/// Operand i must be a float tensor of at least `minRank` dimensions.
bool needFloat(const Op &op, unsigned i, unsigned minRank, std::string &error);
/// Operand i must have the same dtype and dimensions as operand j.
bool needSame(const Op &op, unsigned i, unsigned j, std::string &error);
/// Operand i must have the given dimensions; `what` says which they are, e.g. "one element per row of x".
bool needDims(const Op &op, unsigned i, llvm::ArrayRef<Dim> dims, const char *what, std::string &error);
bool needScalar(const Op &op, unsigned i, DType dtype, std::string &error);
/// The dtype of indices and targets: i32 or i64.
bool needIndices(const Op &op, unsigned i, std::string &error);
/// "x (f32[2,3])": an operand by name and type, for messages.
std::string operandName(const Op &op, unsigned i);
/// An optional operand, null when absent.
inline Value *optional(const Op &op, unsigned i) { return i < op.numOperands() ? op.operand(i) : nullptr; }

// ---- gradients ------------------------------------------------------------------------------------------------------
/// The user differentiates through a result that has no gradient (a statistic kept for the backward op): UserError.
void noGradientOf(const GradCtx &ctx, unsigned result);
/// The sum of `g` over the leading dimensions that `to` lacks.
Value *sumToShape(Builder &b, Value *g, const Type &to);

// ---- costs ----------------------------------------------------------------------------------------------------------
/// Every operand read once, every result written once, `flopsPerElement` for each element of operand 0 (of result 0 when there is none).
Cost streamingCost(const Op &op, double flopsPerElement);

// ---- inputs for the conformance suite -------------------------------------------------------------------------------
/// Extents at edges (1, 127, 128, 129, primes, ...); `which` picks another one of the same seed.
int64_t edgeExtent(unsigned seed, unsigned which);
/// As edgeExtent, at most 17: for dimensions whose product is taken several times.
int64_t smallExtent(unsigned seed, unsigned which);
/// An f32 type with these extents; every third seed pads the last dimension.
Type sampleType(unsigned seed, std::initializer_list<int64_t> extents);
/// Values in [lo, hi), uniform.
Tensor uniformTensor(const Type &t, double lo, double hi, unsigned seed);
/// Whole numbers in [lo, hi].
Tensor integerTensor(const Type &t, int64_t lo, int64_t hi, unsigned seed);
inline Tensor scalarI64(int64_t v) { return Tensor::scalar(double(v), DType::i64); }
inline Type i64Scalar() { return Type::scalar(DType::i64); }

}  // namespace gptc::ops
