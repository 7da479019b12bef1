// Attention by cuDNN 9 (libcudnn.so.9), loaded with dlopen and described by cudnn-frontend, a header-only library. If
// the build lacks cudnn-frontend or cudnn.h, plans are made without cuDNN and no call can be made. cudnn-frontend takes
// half a minute to compile, so only cudnn.cpp includes it.
#pragma once

#include "codegen/cudnn_attention.h"
#include "runtime/cuda/gpu.h"

#include "llvm/ADT/ArrayRef.h"

#include <memory>
#include <string>

namespace gptc::cuda {

/// Version of cudnn-frontend in this build, such as "1.32.0"; "" if there is none.
std::string cudnnFrontend();

/// One CudnnAttention at fixed addresses.
class AttentionCall {
public:
  virtual ~AttentionCall() = default;
  /// May be captured. Calls share the library's handle: only one thread at a time may enqueue.
  virtual void enqueue(Stream stream) const = 0;
};

/// cuDNN on a GPU. It must outlive its calls, and the GPU must outlive it. Equal calls at different addresses share the
/// library's compiled code.
class Cudnn {
public:
  /// Throws UserError(TargetUnavailable) if the build or the machine has no cuDNN, and UserError(OutOfMemory).
  static std::unique_ptr<Cudnn> make(const Gpu &gpu);
  virtual ~Cudnn() = default;
  /// Null if the library has no engine for this call on the GPU, needs more than `bytes` of workspace, or refuses to
  /// run it; `why` gives the reason. `params`: addresses of the group's operands and results. Runs the first of equal
  /// calls once and waits for it, because the library loads code then, which is not allowed during a capture.
  virtual std::unique_ptr<AttentionCall> attention(const CudnnAttention &a, llvm::ArrayRef<DevicePtr> params,
                                                   DevicePtr workspace, int64_t bytes, std::string &why) = 0;
};

/// Why the library refuses the description of a call; "" if it accepts. This needs no GPU, and does not tell whether
/// the library has an engine for the call.
std::string cudnnRefusal(const CudnnAttention &a, unsigned architecture);

}  // namespace gptc::cuda
