// Helpers of op definitions: shape rules, row-major indexing, costs, gradients of broadcasting, sample values.
#pragma once

#include "ir/opdef.h"
#include "ir/random.h"
#include "support/diagnostics.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace gptc::ops {

// ---- shape and dtype rules ------------------------------------------------------------------------------------------

/// Sets `error` and returns false, for use in infer rules: `return fail(error, "...", ...)`.
template <typename... A> bool fail(std::string &error, fmt::format_string<A...> text, A &&...args) {
  error = fmt::format(text, std::forward<A>(args)...);
  return false;
}

/// Whether the dims of `small` are the last dims of `big`, padding included. A scalar is a suffix of every type.
bool isSuffix(const Type &small, const Type &big);

/// Result type of a pointwise op of two operands: same dtype, and one of the shapes is a suffix of the other.
bool broadcastTypes(const Type &a, const Type &b, Type &result, std::string &error);

// The expect functions return whether a rule holds; if not, `error` says what is wrong.

/// Same dtype, dims and padding; sharding may differ. `what` names the pair in the message, e.g. "dy and x".
bool expectSame(const Type &a, const Type &b, const char *what, std::string &error);
/// Operand i has a float dtype.
bool expectFloat(const Op &op, unsigned i, std::string &error);
/// Operand i is a scalar of that dtype.
bool expectScalar(const Op &op, unsigned i, DType dtype, std::string &error);
bool expectRank(const Op &op, unsigned i, unsigned atLeast, std::string &error);

/// Operand i has dtype and dims (padding included) of `t`, which `what` describes, e.g. "one element per row of x".
bool expectType(const Op &op, unsigned i, const Type &t, const char *what, std::string &error);
/// Operand i holds indices or targets: i32 or i64.
bool expectIndices(const Op &op, unsigned i, std::string &error);

// ---- tokens and indices -------------------------------------------------------------------------------------------

// Reasons why OpDef::tokens, tokenSum or indices do not apply to an op.
inline constexpr NotApplicable ofParameters{"of parameters and their gradients, which have no tokens"};
inline constexpr NotApplicable ofScalars{"of scalars, which have no tokens"};
inline constexpr NotApplicable madeByAutodiff{"only autodiff makes it, after the tokens have been shared out"};
inline constexpr NotApplicable anyDimension{"which of its dimensions holds tokens is not known"};
inline constexpr NotApplicable rowsOfScores{"its rows are those of scores, whose second dimension is the heads"};
inline constexpr NotApplicable betweenRanks{"the pass that places it knows what each rank has"};
inline constexpr NotApplicable noTokenSum{"it sums over no tokens, or in another order than theirs"};
inline constexpr NotApplicable noIndices{"none of its operands holds indices"};

// A reason why OpDef::grad does not apply.
inline constexpr NotApplicable placedLate{"the pass that places it runs after gradients are made"};

/// For OpDef::tokenSum: the number of dimensions of operand 0, less one.
inline unsigned leadingDims(const Op &op) { return op.operand(0)->type.rank() - 1; }

// ---- types ----------------------------------------------------------------------------------------------------------

/// `t` without its last dimension: one element per row.
Type rowsOf(const Type &t);
/// The dtype in which sums and row statistics of a `t` are held: f32 for bf16 and f16, else t itself.
DType statDType(DType t);

/// Appends the type of the copy that the attribute `low` of an update asks for. False if `low` is no float dtype.
bool addLowCopy(const Op &op, std::vector<Type> &types, std::string &error);

// ---- reference rules ------------------------------------------------------------------------------------------------

/// Row-major strides over logical extents, as Tensor::data is laid out.
std::vector<int64_t> stridesOf(const Type &t);
/// Calls f(index, position) for every logical element of `t` in row-major order.
void forEachIndex(const Type &t, const std::function<void(llvm::ArrayRef<int64_t>, int64_t)> &f);
/// Element of `t`, broadcast to a shape of which its own is a suffix, at flat position `i` of that shape.
inline double at(const Tensor &t, int64_t i) { return t.data[size_t(i) % t.data.size()]; }
/// Converts a value to dtype `t`: integers wrap, pred is 0 or 1, floats stay as they are, because reference rules do
/// not round.
double convert(double v, DType t);

// ---- cost rules -----------------------------------------------------------------------------------------------------

/// Cost of reading every operand and writing every result once, with `flopsPerElement` for each element of the largest.
Cost streamCost(const Op &op, double flopsPerElement);

// ---- gradient rules -------------------------------------------------------------------------------------------------

/// Sums `g` over the leading dimensions by which `like` was broadcast (reduce_sum); returns g itself if there are none.
/// The order of that sum: over tokens, `fold` stays 0 for the caller of the gradient rules to set. If it is over whole
/// sequences (a [T,C] table added to [B,T,C]), `fold` is 1: each sequence is its own block, so that
/// the order does not depend on the micro-batch.
Value *sumTo(Builder &b, Value *g, const Type &like);
/// Throws UserError if something depends on result `i`, a statistic without a gradient.
void expectNoGradient(const GradCtx &c, unsigned i);

// ---- dropout, as an op and inside attention -------------------------------------------------------------------------

/// Check rule: attribute `p` must be in [0, 1) and `stream` a u32.
std::string checkDropoutAttrs(const Op &op);
/// The key of sequence seq0 + s.
RandomKey dropoutKey(const Op &op, const Tensor &seed, const Tensor &step, const Tensor &seq0, int64_t s);
/// Whether dropout keeps an element with these random bits: exactly if randomUniform of them is at least p.
kir::Expr dropoutKeeps(kir::Expr bits, double p);

// ---- ALiBi, as an op and inside attention ---------------------------------------------------------------------------

/// The decrease of a head's scores per position of distance (Press et al. 2022, "Train Short, Test Long"):
/// 2^(-8(h+1)/n) if the number of heads n is a power of two. Else the first m heads have the slopes for m heads, the
/// largest power of two below n, and the others every other slope for 2m heads, from the first.
double alibiSlope(int64_t head, int64_t heads);
kir::Expr alibiSlope(const kir::Expr &head, int64_t heads, DType compute);

// ---- samples --------------------------------------------------------------------------------------------------------

/// A small generator for sample shapes and values. Training uses ir/random.h instead.
class SampleSource {
public:
  explicit SampleSource(unsigned seed) : state(0x9e3779b97f4a7c15u * (seed + 1)) {}
  uint64_t bits();
  /// Uniform in [lo, hi], integers.
  int64_t between(int64_t lo, int64_t hi);
  /// An extent of at most `limit`, often an edge case: 1, powers of two and their neighbours, primes.
  int64_t extent(int64_t limit = 33);
  double uniform(double lo, double hi);
  double normal();
  Tensor normals(Type t);
  /// Uniform in [lo, hi).
  Tensor uniforms(Type t, double lo, double hi);
  /// Uniform integers in [lo, hi].
  Tensor integers(Type t, int64_t lo, int64_t hi);
  /// n, or n with some padding.
  Dim maybePadded(int64_t n);

private:
  uint64_t state;
};

}  // namespace gptc::ops
