// NVIDIA's libraries, which are found and loaded while a program runs: nothing of CUDA is needed to build or to start.
// This is the only place that knows where they may lie; who calls a library binds its functions by `symbol`.
#pragma once

#include "llvm/ADT/ArrayRef.h"

#include <string>
#include <vector>

namespace gptc {

/// `nvml` is the driver's library of devices as they are, whatever CUDA_VISIBLE_DEVICES hides from `driver`.
enum class CudaLibraryId { driver, nvml, nvrtc, cublasLt, cudnn, nccl, nvtx };

struct CudaVersion {
  int major = 0, minor = 0, patch = 0;
  auto operator<=>(const CudaVersion &) const = default;
  /// "13.0" of the driver and NVRTC, whose libraries say no more; else "9.19.0"
  std::string str() const;
};

/// One library, found and new enough, or the reason why not. It stays loaded as long as the process lives.
///
/// Where it is looked for, the first that is there and fits:
/// 1. the folders of GPTC_CUDA (a list with ':'), and then nowhere else;
/// 2. LD_LIBRARY_PATH, then CUDA_HOME and CUDA_PATH;
/// 3. the loader's own places (ld.so.conf);
/// 4. /usr/local/cuda; $XDG_DATA_HOME/gptc/cuda or ~/.local/share/gptc/cuda, which `tools/setup --cuda` fills; the
///    packages that the python3 on PATH sees (it is asked only when all else failed).
/// A folder may be the one that holds the library, a toolkit's (lib64, lib, targets/x86_64-linux/lib), or one into
/// which Python packages were installed (nvidia/*/lib). The driver is no part of a toolkit, whose stubs cannot run:
/// of it only 1 to 3 and the folders of containers count.
class CudaLibrary {
public:
  /// Looked for once per process, from any thread.
  static const CudaLibrary &find(CudaLibraryId);
  /// The same; UserError(TargetUnavailable) with the reason and a remedy where there is none.
  static const CudaLibrary &get(CudaLibraryId);
  /// Looks anew, as the environment now is.
  static CudaLibrary lookUp(CudaLibraryId);

  bool found() const { return handle; }
  explicit operator bool() const { return found(); }
  CudaLibraryId id;
  const char *name = "";  // "cuBLASLt"
  std::string path;       // of the file, links not followed
  CudaVersion version;    // of the driver: the newest CUDA that it runs; 0.0 of NVML and NVTX, which tell none
  CudaVersion needed;     // at least
  std::string range;      // "13.0 or later but below 14"; "" of NVML and NVTX
  std::string why;        // not found: the reason, without a full stop
  std::string remedy;     // not found: what would help
  bool unfit = false;     // not found: there is one, but of a version that does not fit, or it cannot be loaded
  /// The address of a function, or null.
  void *symbol(const char *function) const;
  /// What dlopen gave, for code of others that looks functions up itself; null where there is none.
  void *loaded() const { return handle; }
  /// `f` becomes the function of that name; false where the library lacks it.
  template <class F> bool bind(F *&f, const char *function) const {
    f = reinterpret_cast<F *>(symbol(function));
    return f != nullptr;
  }

private:
  void *handle = nullptr;
};

/// All of them, in the order in which they build on each other.
llvm::ArrayRef<CudaLibraryId> allCudaLibraries();

}  // namespace gptc
