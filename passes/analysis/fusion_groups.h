// The groups that the pass `fuse` forms with its default options.
#pragma once

#include "ir/graph.h"

#include "llvm/ADT/DenseMap.h"

namespace gptc {

/// Maps each op that runs code to the number of its group. Ops of one group have equal numbers. Does not change `f`.
llvm::DenseMap<const Op *, int> fusionGroups(Function &f);

/// Whether the op is a matmul that may read `b`, its second operand, in panels. If an `unpack` defines `b`, its panels
/// must also have the orientation (`tb`) of the matmul.
bool readsPanels(const Op &product, const Value *b);

/// Whether `op` adds a vector to each row. The option `bias` of fuse applies to such ops and to their gradients' sums.
bool addsBias(const Op &op);

}  // namespace gptc
