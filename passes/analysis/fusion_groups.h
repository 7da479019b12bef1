// Which ops `fuse`, with its default options, would put into one kernel.
#pragma once

#include "ir/graph.h"

#include "llvm/ADT/DenseMap.h"

namespace gptc {

/// Ops of one group have equal numbers; ops that run no code have none. The function stays as it is.
llvm::DenseMap<const Op *, int> fusionGroups(Module &m, Function &f);

/// Whether this product may read `b`, its second operand, in panels: those of `unpack`, if that is what `b` comes from.
bool readsPanels(const Op &product, const Value *b);

/// Whether `op` adds a vector to each row: what the option `bias` of fuse decides about, beside sums of its gradient.
bool addsBias(const Op &op);

}  // namespace gptc
