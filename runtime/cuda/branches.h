// Assigns the kernels of a list to a few streams, so that independent ones may run side by side. Two kernels keep their
// order if they touch the same memory and at least one stores to it. A graph captured this way has branches, so the
// updates of many small parameters fill the GPU as one sweep.
#pragma once

#include "runtime/device/binding.h"

#include "llvm/ADT/ArrayRef.h"

#include <vector>

namespace gptc::cuda {

/// The memory that a kernel, or kernels that start together, touch. The first `reads` places are only read; the others
/// are stored to and perhaps read.
struct Touches {
  std::vector<Place> memory;
  unsigned reads;
  bool meets = false;  // a collective kernel; these keep their order, on stream `streams`
  int64_t launch = 0;  // GroupFacts::launch
};
/// Adds a kernel of the group `op`, whose operands are the first places: to the last of `nodes` if both start together,
/// else behind it.
void addKernel(std::vector<Touches> &nodes, const Op &op, llvm::ArrayRef<Place> memory, bool meets);

struct Branch {
  int stream;              // 0 ... streams - 1; `streams` for collectives
  std::vector<int> waits;  // indices of kernels on other streams to wait for, besides its own stream's earlier ones
  bool awaited = false;    // a later kernel waits for this one
  int chain = 1;           // kernels of the longest chain, each waiting for the one before, that ends with this one
};

/// Returns one branch per kernel, in order. Waits that other waits imply are left out.
std::vector<Branch> branchesOf(llvm::ArrayRef<Touches> kernels, int streams);

}  // namespace gptc::cuda
