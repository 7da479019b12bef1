// Kernels to code for a GPU: emitCuda's text in few programs, which NVRTC compiles side by side. No GPU is needed.
#pragma once

#include "codegen/cuda/emit.h"
#include "codegen/object_cache.h"
#include "ir/kernel/schedule.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringMap.h"

#include <exception>
#include <memory>

namespace gptc {

/// What a kernel is called in images, and so by profilers and compute-sanitizer: at most 48 characters of its own name,
/// which says the ops of its group, and 8 digits of a hash of its print ("row_layernorm_grad_1a2b3c4d"). Its functions
/// are SYMBOL_p0, SYMBOL_p1, ...
std::string cudaSymbol(const kir::Kernel &k);

/// A kernel in an image (a cubin), which it may share with others.
struct CudaCode {
  std::shared_ptr<const std::string> image;
  std::vector<CudaPhase> phases;
  bool isPlain = false;        // loop trees in place of a template that was refused
  std::exception_ptr refused;  // a UserError: there is no image
};

/// Compiles kernels, equal ones once, by the name of the first. Images are cached in `cacheDir` (0700; "" for none)
/// under a hash of their text, the device layer, the architecture and NVRTC's version; beside them stands for each
/// kernel in which image it is and how it is called there, so that it is found whatever it is asked for with and
/// whatever it is called.
///
/// A kernel that NVRTC does not compile is kept in a file. Where it is the text of a template, loop trees of the same
/// meaning take its place (plain_kernel.h), and a warning on stderr quotes the log. Whether that is so follows from the
/// text and NVRTC's version alone, so bits stay the same wherever both do.
class CudaJit {
public:
  /// UserError(TargetUnavailable) where there is no NVRTC.
  CudaJit(const Target &target, const std::string &cacheDir);
  /// Same order as `kernels`. UserError(KernelRejected) for one that NVRTC does not compile and that has no template,
  /// or is no better without.
  std::vector<CudaCode> compile(llvm::ArrayRef<const kir::Kernel *> kernels);
  /// The same, but a kernel that is not compiled has that error in its place.
  std::vector<CudaCode> compileEach(llvm::ArrayRef<const kir::Kernel *> kernels);
  /// Text by hand, of functions that `text.phases` names.
  CudaCode compile(const CudaKernel &text, const std::string &name);
  struct Stats {
    int compiled = 0, reused = 0;  // distinct kernels, by whether the cache had them
    int programs = 0;              // that were compiled, or tried
    int plain = 0;                 // distinct kernels in whose place loop trees stand
  } stats;

private:
  struct Text;
  struct Program;
  const Target target;
  const ObjectCache cache;
  std::string salt;                 // what all keys depend on
  llvm::StringMap<CudaCode> known;  // by kir::print
  llvm::StringMap<int> kept;        // names of texts that were refused

  std::string keyOf(llvm::StringRef kind, llvm::StringRef text) const;
  void emit(Text &t, const kir::Kernel &k, const std::string &printed) const;
  std::vector<Text *> withoutCached(llvm::ArrayRef<Text *> texts) const;
  void compile(Program &p) const;
  void compile(std::vector<Program> &programs);
  void build(llvm::ArrayRef<Text *> texts);
  std::string keep(const Text &t);
  void makeAll(std::vector<Text> &texts);
};

}  // namespace gptc
