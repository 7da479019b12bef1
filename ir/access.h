// How ops reach the elements of their operands, and which results of a group may therefore take an operand's memory.
#pragma once

#include "ir/graph.h"

#include <optional>
#include <vector>

namespace gptc {

/// How an op reads one operand, from the weakest demand to the strongest.
enum class Access : uint8_t {
  none,      // not at all
  point,     // the element at the current point of the domain (or its suffix, or the scalar)
  row,       // the element of the current row
  inRow,     // elements of the current row at computed columns, for results that are one per row
  anywhere,  // elements at computed positions, or by an anchor with a method of its own
};

/// One entry per operand, found by running the op's own lowering rule; ops without one read `anywhere`.
std::vector<Access> operandAccess(const Op &op);

/// Whether the elements of an op depend on the first index of its domain as a number, and not only through what they
/// read there: masks of dropout do, a causal mask over the last two dimensions of three does not.
bool usesFirstIndex(const Op &op);

/// The shape over which an op is defined: that of operand 0 for rows and sums, else that of its result.
const Type &domainOf(const Op &op);

/// Whether result `result` of a fused op may lie exactly where operand `operand` lies: every element of the operand is
/// read before the same element of the result is written, in every recipe. That holds
///   - in pointwise and row groups for operands of the domain's shape, read at the current point, or anywhere in the
///     row for a result per row: those are computed before the row's last sweep, which alone stores full rows;
///   - for the operand with which a sum begins (`init` of fold, matmul and scatter ops) and the result of that sum;
///   - for the caches of attention_cached.
bool mayShare(const Op &fused, unsigned result, unsigned operand);

/// The operand where `result` has to lie, so that a kernel stores only what differs: the result's entry of the group's
/// attribute `in_place` (-1 for none), which the pass settle-writes sets and checkPlan judges. mayShare holds for both.
std::optional<unsigned> inPlaceOperand(const Op &fused, unsigned result);

}  // namespace gptc
