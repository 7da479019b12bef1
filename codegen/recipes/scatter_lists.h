// The scatter recipe's loops on CUDA.
#pragma once

#include "codegen/codegen.h"
#include "codegen/recipes/group_ctx.h"

#include "llvm/ADT/ArrayRef.h"

namespace gptc {

/// Tokens of a block that counts ids, for so many tokens in all: a multiple of 512.
int64_t tokensOfChunk(int64_t tokens);
/// The most tokens of such a block, whose ids shared memory holds.
inline constexpr int64_t largestChunk = 8192;

/// Adds the loops that compute the results `tables` of the group, all of them `scatter`'s table, to the kernel, with
/// their workspaces, and sets the kernel's parameters. The schedule's `task` is the tokens of a chunk: tokensOfChunk,
/// or another multiple of 512 up to largestChunk; `vec` the columns of a thread.
void addByLists(GroupEval &g, const Op &scatter, llvm::ArrayRef<unsigned> tables, const Schedule &s, LoweredGroup &out);

}  // namespace gptc
