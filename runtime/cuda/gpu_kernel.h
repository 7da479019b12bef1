// A GPU kernel of a plan as observers see it: its memory, and how to run it at other addresses.
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
  std::vector<Place> memory;      // arena places of all params but the stream numbers
  /// Its name on the GPU: the symbols of its functions, or the library.
  virtual std::string symbols() const = 0;
  /// Returns a function that enqueues the kernel on other memory; `params` are addresses at multiples of 256. Empty if
  /// the kernel cannot run by itself; `why` gives the reason. May be captured once it has run. The executor must
  /// outlive it.
  virtual std::function<void(Stream)> elsewhere(llvm::ArrayRef<DevicePtr> params, std::string &why) const = 0;
};

}  // namespace gptc::cuda
