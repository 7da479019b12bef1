// Compiles CUDA text with NVRTC, which is loaded by dlopen: nothing of CUDA is needed to build or to start, and no GPU
// to compile.
#pragma once

#include "ir/kernel/schedule.h"
#include "support/diagnostics.h"

#include <string>

namespace gptc {

struct CompiledCuda {
  std::string cubin, ptx;
  std::string log;           // of compiler and assembler
  int registers = 0;         // per thread, of the kernel with most
  int64_t spilledBytes = 0;  // of stores and loads of spilled registers, in all kernels together
};

/// Thrown for text that does not compile: a bug of this compiler or of NVRTC.
class CudaRejected : public InternalError {
public:
  CudaRejected(const std::string &log, const std::string &text)
      : InternalError(__FILE__, __LINE__, fmt::format("NVRTC rejects a kernel:\n{}\n{}", log, text)), log(log) {}
  std::string log;
};

/// The NVRTC library of this machine, as CudaLibrary finds it.
class Nvrtc {
public:
  /// The library, loaded once per process. UserError(TargetUnavailable) if there is none.
  static const Nvrtc &get();
  /// The same, but null, with the reason in `why`, if there is none.
  static const Nvrtc *find(std::string &why);

  /// Compiles the text of emitCuda for the architecture `target.cpu`: without fusing a multiply and an add, with
  /// denormals, and with correctly rounded division and square root. Callable from any thread. CudaRejected if the text
  /// does not compile; UserError(TargetUnavailable) if a part of the library is missing.
  CompiledCuda compile(const std::string &text, const Target &target) const;

private:
  struct Api;
  Nvrtc() = default;
  const Api *api = nullptr;
  static const Nvrtc *load(std::string &why);
};

}  // namespace gptc
