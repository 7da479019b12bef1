// Attention by cuDNN 9 (libcudnn.so.9), found as every library of NVIDIA's is and described to it by cudnn-frontend,
// which is a library of headers. Where the build had those headers, or cudnn.h, not, no call can be made and plans are
// made without. cudnn-frontend takes half a minute to compile: it is seen in cudnn_attention.cpp only.
#pragma once

#include "codegen/library_attention.h"
#include "runtime/cuda/gpu.h"

#include "llvm/ADT/ArrayRef.h"

#include <memory>
#include <string>

namespace gptc::cuda {

/// The version of cudnn-frontend that this build knows, as in "1.32.0"; "" without.
std::string cudnnFrontend();

/// One LibraryAttention at fixed addresses.
class AttentionCall {
public:
  virtual ~AttentionCall() = default;
  /// May be captured. Not from two threads at a time, as calls share the library's handle.
  virtual void enqueue(Stream stream) const = 0;
};

/// cuDNN on a GPU; outlives its calls, and the GPU outlives it. Equal calls at different addresses share what the
/// library compiles for them.
class Cudnn {
public:
  /// UserErrors: TargetUnavailable where the build or the machine has none; OutOfMemory.
  static std::unique_ptr<Cudnn> make(const Gpu &gpu);
  virtual ~Cudnn() = default;
  /// Null where the library has nothing for this on the GPU, wants more than `bytes` of workspace, or refuses to run
  /// it; `why` says which. `params`: addresses of the group's operands and results. The first of equal calls runs once,
  /// and is waited for: what the library loads when it first runs is then loaded, which it may not do while a stream
  /// captures.
  virtual std::unique_ptr<AttentionCall> attention(const LibraryAttention &a, llvm::ArrayRef<DevicePtr> params,
                                                   DevicePtr workspace, int64_t bytes, std::string &why) = 0;
};

/// Why the library does not take the description of a call, "" where it does: all that can be asked without a GPU. That
/// it has an engine for it is not said.
std::string cudnnRefusal(const LibraryAttention &a, unsigned architecture);

}  // namespace gptc::cuda
