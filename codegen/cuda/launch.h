// Kernels that start together (GroupFacts::launch): one __global__ function for each of their phases.
//
// A block finds the kernel that it belongs to in a table in memory, which also has the kernel's parameters, and calls
// the function of that kernel. Equal kernels share a function. A phase has the blocks of all kernels that have that
// phase.
#pragma once

#include "codegen/cuda/emit.h"
#include "ir/kernel/kernel.h"

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gptc {

class CudaLaunch {
public:
  /// `kernels`: one for each member, at least one; without statements of products or attention.
  explicit CudaLaunch(llvm::ArrayRef<const kir::Kernel *> kernels);
  /// The text. Its functions take one parameter, the address of the table; `blocks` are those of all members.
  const CudaKernel &cuda() const { return kernel; }
  /// Of what the symbols begin with: "launch_adamw_1a2b3c4d".
  const std::string &name() const { return symbol; }
  int64_t blocks(size_t member, size_t phase) const;  // 0: the member has no such phase
  /// The table of a phase for some members. params[i]: the parameters of members[i], as in Kernel::params. Empty if
  /// none of them has the phase.
  std::vector<uint64_t> table(size_t phase, llvm::ArrayRef<size_t> members,
                              llvm::ArrayRef<std::vector<uint64_t>> params) const;

private:
  std::string symbol;
  CudaKernel kernel;
  CudaParts parts;               // of distinct kernels
  std::vector<size_t> kernelOf;  // by member
  size_t mostParams = 0;
};

}  // namespace gptc
