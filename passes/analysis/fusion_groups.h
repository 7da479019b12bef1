// Which ops `fuse`, with its default options, would put into one kernel.
#pragma once

#include "ir/graph.h"

#include "llvm/ADT/DenseMap.h"

namespace gptc {

/// Ops of one group have equal numbers; ops that run no code have none. The function stays as it is.
llvm::DenseMap<const Op *, int> fusionGroups(Module &m, Function &f);

}  // namespace gptc
