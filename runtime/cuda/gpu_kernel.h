// A kernel of a plan on a GPU, as observers see it: where its memory is, and how to run it elsewhere.
#pragma once

#include "runtime/cuda/gpu.h"
#include "runtime/device/binding.h"
#include "runtime/device/executor.h"

#include "llvm/ADT/ArrayRef.h"

#include <functional>

namespace gptc::cuda {

class GpuKernel : public BoundKernel {
public:
  const Gpu *gpu = nullptr;
  std::vector<DevicePtr> params;  // operands, results, workspaces, numbers of streams
  std::vector<Place> memory;      // of all but the numbers
  /// What it is called on the GPU: its functions, or the library.
  virtual std::string symbols() const = 0;
  /// Enqueues the same on memory at other addresses: `params` of its own, at multiples of 256. Empty where it cannot
  /// run by itself; `why` says why. It may be captured once it has run; the executor outlives it.
  virtual std::function<void(Stream)> elsewhere(llvm::ArrayRef<DevicePtr> params, std::string &why) const = 0;
};

}  // namespace gptc::cuda
