// Finds and loads NVIDIA's libraries at run time: nothing of CUDA is needed to build or to start. Only this file knows
// where they may lie. Callers of a library look its functions up with CudaLibrary::symbol or bind.
#pragma once

#include <string>
#include <vector>

namespace gptc {

/// `nvml` is part of the driver and reports all devices; CUDA_VISIBLE_DEVICES hides devices from `driver` only.
enum class CudaLibraryId { driver, nvml, nvrtc, cublasLt, cudnn, nccl, nvtx };

struct CudaVersion {
  int major = 0, minor = 0, patch = 0;
  auto operator<=>(const CudaVersion &) const = default;
  /// "9.19.2", or "13.0" if the patch is 0, as it always is for the driver and NVRTC.
  std::string str() const;
};

/// One library that was found in a version that fits, or the reason why none was. It stays loaded until the process
/// ends.
///
/// The search takes the first library that is there and fits, in
/// 1. the folders of GPTC_CUDA (a list with ':'); if it is set, nowhere else;
/// 2. LD_LIBRARY_PATH, then CUDA_HOME and CUDA_PATH;
/// 3. the loader's own places (ld.so.conf);
/// 4. /usr/local/cuda; $XDG_DATA_HOME/gptc/cuda or ~/.local/share/gptc/cuda, which `tools/setup --cuda` fills; the
///    packages of the python3 on PATH (python3 runs only if all else failed).
/// A folder may hold the library itself, be a toolkit's (lib64, lib, targets/x86_64-linux/lib), or be one into which
/// Python packages were installed (nvidia/*/lib). The driver is no part of a toolkit, which has only stubs that cannot
/// run: the search for it leaves out CUDA_HOME, CUDA_PATH and step 4, and adds the folders of containers.
class CudaLibrary {
public:
  /// The library, searched for once per process. Callable from any thread.
  static const CudaLibrary &find(CudaLibraryId);
  /// The same, but throws UserError(TargetUnavailable) with the reason and a remedy if none was found.
  static const CudaLibrary &get(CudaLibraryId);
  /// Searches again, with the environment as it is now.
  static CudaLibrary lookUp(CudaLibraryId);

  bool found() const { return handle; }
  explicit operator bool() const { return found(); }
  CudaLibraryId id;
  const char *name = "";  // "cuBLASLt"
  std::string path;       // of the file, links not followed
  CudaVersion version;    // for the driver the newest CUDA that it runs; 0.0 for NVML and NVTX, which report none
  CudaVersion needed;     // the oldest version that fits
  std::string range;      // "13.0 or later but below 14"; "" for NVML and NVTX
  std::string why;        // if not found: the reason, without a full stop
  std::string remedy;     // if not found: what the user can do
  bool unfit = false;     // if not found: a library is there, but its version does not fit or it cannot be loaded
  /// The address of a function; null if the library is not found or lacks the function.
  void *symbol(const char *function) const;
  /// The handle of dlopen, for third-party code that looks functions up itself; null if the library is not found.
  void *loaded() const { return handle; }
  /// Sets `f` to the function of that name; false if there is none.
  template <class F> bool bind(F *&f, const char *function) const {
    f = reinterpret_cast<F *>(symbol(function));
    return f != nullptr;
  }

private:
  void *handle = nullptr;
};

}  // namespace gptc
