// Which kernels of a list may run side by side, and on which of a few streams: those that touch the same memory, one of
// them storing to it, keep their order; all others need none. A graph that is captured so has branches, and the update
// of many small parameters fills the GPU as one sweep.
#pragma once

#include "runtime/device/binding.h"

#include "llvm/ADT/ArrayRef.h"

#include <vector>

namespace gptc::cuda {

/// What a kernel touches; the first `reads` places are only read, the others stored to and perhaps read.
struct Touches {
  llvm::ArrayRef<Place> memory;
  unsigned reads;
  bool meets = false;  // other ranks, who all do so in the same order: on a stream of its own, `streams`
};

struct Branch {
  int stream;              // 0 ... streams - 1, or `streams`
  std::vector<int> waits;  // for these kernels, on other streams, beside all before it on its own
  bool awaited = false;    // a later one waits for this
};

/// One for each kernel, in order. Waits that follow from others are left out.
std::vector<Branch> branchesOf(llvm::ArrayRef<Touches> kernels, int streams);

}  // namespace gptc::cuda
