// The scatter recipe's loops on CUDA.
#pragma once

#include "codegen/codegen.h"
#include "codegen/recipes/group_ctx.h"

#include "llvm/ADT/ArrayRef.h"

namespace gptc {

/// Adds the loops that compute the results `tables` of the group, all of them `scatter`'s table, to the kernel, with
/// their workspaces, and sets the kernel's parameters.
void addByLists(GroupEval &g, const Op &scatter, llvm::ArrayRef<unsigned> tables, LoweredGroup &out);

}  // namespace gptc
