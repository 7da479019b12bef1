// Compiles kernels to code for a GPU. The texts of emitCuda are joined to a few programs, which NVRTC compiles in
// parallel. No GPU is needed.
#pragma once

#include "codegen/cuda/emit.h"
#include "codegen/object_cache.h"
#include "ir/kernel/schedule.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringMap.h"

#include <exception>
#include <memory>

namespace gptc {

/// The symbol of a kernel in images, which profilers and compute-sanitizer show: at most 48 characters of the kernel's
/// name, which lists the ops of its group, and 8 digits of a hash of kir::print ("row_layernorm_grad_1a2b3c4d"). The
/// kernel's functions are SYMBOL_p0, SYMBOL_p1, ...
std::string cudaSymbol(const kir::Kernel &k);

/// A compiled kernel. Several kernels may share an image (a cubin).
struct CudaCode {
  std::shared_ptr<const std::string> image;
  std::vector<CudaPhase> phases;
  bool isPlain = false;        // loop trees replace a template that NVRTC refused
  std::exception_ptr refused;  // set if there is no image: a UserError
};

/// Compiles kernels; equal ones once, under the name of the first. Images are cached in `cacheDir` (mode 0700; "" for
/// no cache) under a hash of their text, the device layer, the architecture and NVRTC's version. A second entry per
/// kernel holds its image's key and its symbol there, so that a later batch with other kernels or names still finds it.
///
/// The text of a kernel that NVRTC does not compile is kept in a file. If the kernel has matmul or attention templates,
/// loop trees of the same meaning replace it (plain_kernel.h), and a warning on stderr quotes the log. This depends
/// only on the text and NVRTC's version, so equal texts and versions give equal bits.
class CudaJit {
public:
  /// UserError(TargetUnavailable) if there is no NVRTC.
  CudaJit(const Target &target, const std::string &cacheDir);
  /// The code in the order of `kernels`. UserError(KernelRejected) if NVRTC does not compile one of them and loop trees
  /// cannot replace it.
  std::vector<CudaCode> compile(llvm::ArrayRef<const kir::Kernel *> kernels);
  /// The same, but CudaCode::refused holds the error of a kernel that is not compiled.
  std::vector<CudaCode> compileEach(llvm::ArrayRef<const kir::Kernel *> kernels);
  /// Compiles handwritten text, whose functions `text.phases` names. UserError(KernelRejected) as above.
  CudaCode compile(const CudaKernel &text, const std::string &name);
  struct Stats {
    int compiled = 0, reused = 0;  // distinct kernels: compiled, or found in the cache
    int programs = 0;              // programs given to NVRTC, with or without success
    int plain = 0;                 // distinct kernels that loop trees replace
  } stats;

private:
  struct Text;
  struct Program;
  const Target target;
  const ObjectCache cache;
  std::string salt;                 // part of all keys: architecture, NVRTC's version, device layer
  llvm::StringMap<CudaCode> known;  // by kir::print
  llvm::StringMap<int> kept;        // how many refused texts of a name were kept

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
