// How ops access the elements of their operands, and which results of a group may therefore take an operand's memory.
#pragma once

#include "ir/graph.h"

#include <optional>
#include <vector>

namespace gptc {

/// How an op reads one operand. If several apply, the last in this order counts.
enum class Access : uint8_t {
  none,      // not at all
  point,     // the element at the current point of the domain (or its suffix, or the scalar)
  row,       // the element of the current row
  inRow,     // elements of the current row at computed columns, by an op all of whose results have one element per row
  anywhere,  // elements at computed positions; also every operand of an op without a lowering rule
};

/// One entry per operand, found by running the op's lowering rule. Ops without a lowering rule read `anywhere`.
std::vector<Access> operandAccess(const Op &op);

/// Whether the op's element expression uses the first index of its domain as a number, rather than only to address
/// operands. True for dropout masks (and for ops without a lowering rule); false for a causal mask over the last two
/// dimensions of three.
bool usesFirstIndex(const Op &op);

/// The shape over which an op is defined: that of operand 0 for ops of fusion kind row, fold and reduce_all, else that
/// of its result.
const Type &domainOf(const Op &op);

/// Whether result `result` of a fused op may have exactly the memory of operand `operand`: in every recipe, each
/// element of the operand is read before the same element of the result is written. True, if dtype and shape are equal,
/// for
///   - pointwise, row and row_fold groups, if the operand has the domain's shape and is read at the current point, or
///     anywhere in the row for a result with one element per row: those are computed before the row's last sweep, and
///     only that sweep stores full rows;
///   - a sum (of a fold, matmul or scatter op) and the operand that begins it (`init`), if nothing else uses the
///     operand;
///   - the caches of attention_cached, and the x of an all_reduce, if nothing else uses them.
bool mayShare(const Op &fused, unsigned result, unsigned operand);

/// Whether a GPU may start the group together with others (GroupFacts::launch): its blocks are plain loops of any
/// number.
bool mayStartTogether(const Op &fused);

/// What a group of the recipe row_fold may have, so that the pass fuse forms no other: columns that no warp is too wide
/// for, blocks of rows that batches divide, and sums over tokens (of all columns) that fit shared memory.
struct RowFoldLimits {
  static constexpr int64_t leastColumns = 64, batch = 8, mostSums = 8192;
};

/// The same of the recipe row_matmul: rows and columns of the first operand. As f32 every GPU has room for one row.
struct RowMatmulLimits {
  static constexpr int64_t mostRows = 4, mostColumns = 12 << 10;
};

/// The operand in whose memory the result must be, because the kernel stores only the elements that change: entry
/// `result` of the group's attribute `in_place` (-1 for none). The pass settle-writes sets it, checkPlan checks it.
/// nullopt if there is no such operand or mayShare is false for the two.
std::optional<unsigned> inPlaceOperand(const Op &fused, unsigned result);

}  // namespace gptc
