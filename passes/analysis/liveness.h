// Live ranges of the temporary memory of a function. Positions count the ops of the body from 0.
#pragma once

#include "ir/graph.h"

#include <vector>

namespace gptc {

/// The value whose memory `v` refers to: `v` itself, or the value below a chain of reshapes and `done` ops.
Value *rootOf(Value *v);
inline const Value *rootOf(const Value *v) { return rootOf(const_cast<Value *>(v)); }

/// One piece of temporary memory: a result of an op that runs code, an argument, or a workspace.
struct LiveRange {
  const Value *value = nullptr;  // null for a workspace
  const Op *op = nullptr;        // null for an argument
  unsigned index = 0;            // of the workspace
  int64_t bytes = 0;             // a multiple of planAlignment, not 0
  int begin = 0, end = 0;  // both included; an argument begins at -1, a result of the function ends at the op count
};

/// Live ranges of a function, sorted by begin. They omit each value that is written to a state, as it lies in the
/// memory of the state. All that groups of one launch (GroupFacts::launch) touch lives from the first of them to the
/// last. Throws UserError(TooLarge) for a tensor or workspace of more than 2^56 bytes.
std::vector<LiveRange> liveRanges(const Function &f);

/// The maximum over all positions of the bytes that are live there.
int64_t peakBytes(llvm::ArrayRef<LiveRange> ranges);

/// Bytes of a type, rounded up to planAlignment. Throws UserError(TooLarge) above 2^56 bytes.
int64_t alignedBytes(const Type &t);

}  // namespace gptc
