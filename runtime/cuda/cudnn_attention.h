// Attention by cuDNN 9 (libcudnn.so.9), found as every library of NVIDIA's is and described to it by cudnn-frontend,
// which is a library of headers. Where the build had those headers, or cudnn.h, not, no call can be made and plans are
// made without. cudnn-frontend takes half a minute to compile: it is seen in cudnn_attention.cpp only.
#pragma once

#include "codegen/library_attention.h"
#include "runtime/cuda/driver.h"

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

/// cuDNN in the context that is current when it is made; outlives its calls. Equal calls at different addresses share
/// what the library compiles for them.
class Cudnn {
public:
  /// UserError(TargetUnavailable) where the build or the machine has none.
  static std::unique_ptr<Cudnn> make();
  virtual ~Cudnn() = default;
  /// Null where the library has nothing for this on a GPU of that architecture (80, 90, ...), or wants more than
  /// `bytes` of workspace. `params`: addresses of the group's operands and results. The first of equal calls runs once,
  /// on `stream`, which does not capture: what the library loads when it first runs is then loaded.
  virtual std::unique_ptr<AttentionCall> attention(const LibraryAttention &a, unsigned architecture,
                                                   llvm::ArrayRef<DevicePtr> params, DevicePtr workspace, int64_t bytes,
                                                   Stream stream) = 0;
};

/// Why the library does not take the description of a call, "" where it does: all that can be asked without a GPU. That
/// it has an engine for it is not said.
std::string cudnnRefusal(const LibraryAttention &a, unsigned architecture);

}  // namespace gptc::cuda
