// From when to when each piece of memory of a function is needed. Positions count the ops of the body from 0.
#pragma once

#include "ir/graph.h"

#include <vector>

namespace gptc {

/// The value whose memory `v` shows: `v` itself, or what the reshapes above it are views of, and `done` waits for.
Value *rootOf(Value *v);
inline const Value *rootOf(const Value *v) { return rootOf(const_cast<Value *>(v)); }

/// One piece of temporary memory: a result of an op that runs code, an argument, or a workspace.
struct LiveRange {
  const Value *value = nullptr;  // null for a workspace
  const Op *op = nullptr;        // null for an argument
  unsigned index = 0;            // of the workspace
  int64_t bytes = 0;             // a multiple of planAlignment, at least one
  int begin = 0, end = 0;  // both included; an argument begins at -1, a result of the function ends at the op count
};

/// Live ranges of a function, by begin. A value that is written to a state is left out: it is meant to lie there.
/// Throws UserError(TooLarge) for a tensor whose bytes do not fit.
std::vector<LiveRange> liveRanges(const Function &f);

/// The most bytes that are live at one position.
int64_t peakBytes(llvm::ArrayRef<LiveRange> ranges);

/// Bytes of a type rounded up to the alignment. Throws UserError(TooLarge).
int64_t alignedBytes(const Type &t);

}  // namespace gptc
