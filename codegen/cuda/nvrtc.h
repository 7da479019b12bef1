// Compiles CUDA text for a GPU by NVRTC, which is loaded with dlopen: nothing of CUDA is needed to build or to start,
// and no GPU to compile.
#pragma once

#include "ir/kernel/schedule.h"
#include "support/diagnostics.h"

#include <string>

namespace gptc {

struct CompiledCuda {
  std::string cubin, ptx;
  std::string log;           // what compiler and assembler said
  int registers = 0;         // of the kernel with most
  int64_t spilledBytes = 0;  // stores and loads of registers that did not fit, all kernels together
};

/// Text that does not compile: a mistake of ours, or of the compiler's.
class CudaRejected : public InternalError {
public:
  CudaRejected(const std::string &log, const std::string &text)
      : InternalError(__FILE__, __LINE__, fmt::format("NVRTC rejects a kernel:\n{}\n{}", log, text)), log(log) {}
  std::string log;
};

/// The NVRTC library of this machine, as CudaLibrary finds it.
class Nvrtc {
public:
  /// Loaded once. UserError(TargetUnavailable) where there is none.
  static const Nvrtc &get();
  /// The same; null and the reason where there is none.
  static const Nvrtc *find(std::string &why);

  /// Text as emitCuda gives it, for `target.cpu`; without contraction, denormals kept, correctly rounded division.
  /// Callable from any thread. CudaRejected when the text does not compile;
  /// UserError(TargetUnavailable) where a part of the library is missing.
  CompiledCuda compile(const std::string &text, const Target &target) const;

private:
  struct Api;
  Nvrtc() = default;
  const Api *api = nullptr;
  static const Nvrtc *load(std::string &why);
};

}  // namespace gptc
