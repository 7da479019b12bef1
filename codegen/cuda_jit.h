// Kernels to code for a GPU: emitCuda's text in few programs, which NVRTC compiles side by side. No GPU is needed.
#pragma once

#include "codegen/emit_cuda.h"
#include "codegen/object_cache.h"
#include "ir/schedule.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringMap.h"

#include <memory>

namespace gptc {

/// A kernel in an image (a cubin), which it may share with others.
struct CudaCode {
  std::shared_ptr<const std::string> image;
  std::vector<CudaPhase> phases;
};

/// Compiles kernels, equal ones once. Images are cached in `cacheDir` (0700; "" for none) under a hash of their text,
/// the device layer, the architecture and NVRTC's version; beside them stands for each kernel in which image it is, so
/// that it is found whatever it is asked for with.
class CudaJit {
public:
  /// UserError(TargetUnavailable) where there is no NVRTC.
  CudaJit(const Target &target, const std::string &cacheDir);
  /// Same order as `kernels`. UserError(KernelRejected) for text that NVRTC does not compile; it is kept in a file.
  std::vector<CudaCode> compile(llvm::ArrayRef<const kir::Kernel *> kernels);
  /// Text by hand, of functions that `text.phases` names.
  CudaCode compile(const CudaKernel &text, const std::string &name);
  struct Stats {
    int compiled = 0, reused = 0;  // distinct kernels, by whether the cache had them
    int programs = 0;              // that were compiled
  } stats;

private:
  struct Text;
  const Target target;
  const std::string cacheDir;
  const ObjectCache cache;
  std::string salt;                 // what all keys depend on
  llvm::StringMap<CudaCode> known;  // by kir::print

  std::string keyOf(llvm::StringRef kind, llvm::StringRef text) const;
  void findCached(std::vector<Text> &texts) const;
  void build(std::vector<Text *> texts);
  void makeAll(std::vector<Text> &texts);
};

}  // namespace gptc
