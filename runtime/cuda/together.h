// Kernels of a function that start together on a GPU (codegen/cuda/launch.h), and the tables in its memory.
#pragma once

#include "codegen/cuda/launch.h"
#include "runtime/cuda/gpu.h"

#include "llvm/ADT/ArrayRef.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gptc::cuda {

/// A function of an image that is loaded.
struct LoadedPhase {
  LoadedFunction function;
  unsigned blocks, threads, sharedBytes;
  std::string symbol;
  bool waits = false;  // its code waits for the kernel before it (device/primitives.cuh, waitForPrevious)

  /// Enqueues `count` blocks. `early`: a function that waits may start while the kernel in front of it on the stream
  /// still runs, once all of that one's blocks have said letNextStart (programmatic dependent launch, CUDA C++
  /// Programming Guide). The kernel in front must be code of ours: then it waits as well, and so for all before it.
  void launch(const Gpu &gpu, unsigned count, void **params, Stream stream, bool early) const;
};

class Together {
public:
  /// `params`: the addresses for each kernel's Kernel::params.
  Together(const Gpu &gpu, llvm::ArrayRef<const kir::Kernel *> kernels, std::vector<std::vector<uint64_t>> params)
      : code(kernels), gpu(gpu), params(std::move(params)) {}

  const CudaLaunch code;
  /// Takes the functions of `code`, in order, and makes the tables. Throws UserError(OutOfMemory) without memory for
  /// them.
  void load(std::vector<LoadedPhase> functions);
  const std::vector<LoadedPhase> &phases() const { return functions; }
  /// Enqueues all kernels.
  void launch(Stream stream, bool early) const;
  /// Enqueues one of them.
  void launchAlone(size_t member, Stream stream) const;
  /// The same on other memory. The result keeps a table of its own.
  std::function<void(Stream)> elsewhere(size_t member, llvm::ArrayRef<DevicePtr> at) const;

private:
  struct Tables {
    std::unique_ptr<DeviceMemory> memory;
    std::vector<DevicePtr> at;  // by phase; 0: no member has it
  };
  const Gpu &gpu;
  const std::vector<std::vector<uint64_t>> params;
  std::vector<LoadedPhase> functions;
  Tables all;
  std::vector<Tables> alone;  // by member, in the memory of `all`

  std::vector<Tables> upload(llvm::ArrayRef<std::vector<size_t>> members,
                             llvm::ArrayRef<std::vector<std::vector<uint64_t>>> params) const;
  void enqueue(const Tables &tables, Stream stream, llvm::ArrayRef<size_t> members, bool early) const;
};

}  // namespace gptc::cuda
