// The scatter recipe's loops on CUDA.
#pragma once

#include "codegen/codegen.h"
#include "codegen/recipes/group_ctx.h"

#include "llvm/ADT/ArrayRef.h"

namespace gptc {

/// Tokens of a block that counts ids, for so many tokens in all: a multiple of 512.
int64_t tokensOfChunk(int64_t tokens);

/// Adds the loops that compute the results `tables` of the group, all of them `scatter`'s table, to the kernel, with
/// their workspaces, and sets the kernel's parameters. `chunk`: tokensOfChunk, or another multiple of 512.
void addByLists(GroupEval &g, const Op &scatter, llvm::ArrayRef<unsigned> tables, int64_t chunk, LoweredGroup &out);

}  // namespace gptc
