#include "codegen/cuda/libraries.h"

#include "support/diagnostics.h"
#include "support/environment.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <iterator>
#include <optional>

namespace gptc {

namespace fs = std::filesystem;

namespace {

CudaVersion ofDecimal(size_t v, size_t major, size_t minor) {
  return {int(v / major), int(v % major / minor), int(v % minor)};
}

// Each reads a library's version with the library's function at `f`. None of those functions needs a device or an
// initialised library.

std::optional<CudaVersion> driverVersion(void *f) {
  int v = 0;
  if (reinterpret_cast<int (*)(int *)>(f)(&v) != 0)
    return std::nullopt;
  return CudaVersion{v / 1000, v % 1000 / 10, 0};
}

std::optional<CudaVersion> nvrtcVersion(void *f) {
  CudaVersion v;
  if (reinterpret_cast<int (*)(int *, int *)>(f)(&v.major, &v.minor) != 0)
    return std::nullopt;
  return v;
}

std::optional<CudaVersion> plainVersion(void *f) { return ofDecimal(reinterpret_cast<size_t (*)()>(f)(), 10000, 100); }

std::optional<CudaVersion> ncclVersion(void *f) {
  int v = 0;
  if (reinterpret_cast<int (*)(int *)>(f)(&v) != 0)
    return std::nullopt;
  return ofDecimal(v, 10000, 100);
}

std::optional<CudaVersion> untold(void *) { return CudaVersion{}; }

/// The static description of a library.
struct Facts {
  CudaLibraryId id;
  const char *name;
  std::array<const char *, 2> files;  // file names to try, the preferred major version first
  const char *probe;                  // a function that every version has; its address goes to `version`
  std::optional<CudaVersion> (*version)(void *probe);
  CudaVersion needed;
  bool ofDriver;
  bool sameMajor = false;          // a later major version does not fit, because its functions differ
  const char *builtFor = nullptr;  // a function that returns the CUDA version for which the library was built, or null

  bool takes(const CudaVersion &v) const { return v >= needed && (!sameMajor || v.major == needed.major); }
  /// "13.0 or later" or "13.0 or later but below 14".
  std::string range() const {
    return needed.str() + " or later" + (sameMajor ? fmt::format(" but below {}", needed.major + 1) : "");
  }
};

using enum CudaLibraryId;
constexpr Facts facts[] = {
    // GPU code of toolkit 13 needs a driver for CUDA 13.0 or later (release 580).
    {driver, "the NVIDIA driver", {"libcuda.so.1", nullptr}, "cuDriverGetVersion", driverVersion, {13, 0, 0}, true},
    {nvml, "NVML", {"libnvidia-ml.so.1", nullptr}, "nvmlInit_v2", untold, {}, true},
    {nvrtc, "NVRTC", {"libnvrtc.so.13", "libnvrtc.so"}, "nvrtcVersion", nvrtcVersion, {13, 0, 0}, false},
    {cublasLt,
     "cuBLASLt",
     {"libcublasLt.so.13", "libcublasLt.so"},
     "cublasLtGetVersion",
     plainVersion,
     {13, 0, 0},
     false,
     true},
    {cudnn,
     "cuDNN",
     {"libcudnn.so.9", "libcudnn.so"},
     "cudnnGetVersion",
     plainVersion,
     {9, 0, 0},
     false,
     true,
     "cudnnGetCudartVersion"},
    // 2.19 is the first with memory registered with a communicator.
    {nccl, "NCCL", {"libnccl.so.2", "libnccl.so"}, "ncclGetVersion", ncclVersion, {2, 19, 0}, false, true},
    {nvtx, "NVTX", {"libnvtx3interop.so.1", "libnvtx3interop.so"}, "nvtxRangePushA", untold, {}, false},
};

const Facts &factsOf(CudaLibraryId id) {
  return *std::find_if(std::begin(facts), std::end(facts), [&](const Facts &f) { return f.id == id; });
}

/// The folders of a variable's value; none if `value` is null.
std::vector<std::string> listOf(const char *value) {
  std::vector<std::string> folders;
  llvm::SmallVector<llvm::StringRef, 8> parts;
  llvm::StringRef(value ? value : "").split(parts, ':', -1, /*KeepEmpty=*/false);
  for (llvm::StringRef p : parts)
    folders.push_back(p.str());
  return folders;
}

/// Adds the folders in which libraries may lie below a folder of a toolkit, of Python packages, or of libraries.
void addBelow(std::vector<std::string> &to, const fs::path &folder) {
  std::error_code ec;
  for (const char *sub : {"", "lib64", "lib", "targets/x86_64-linux/lib"})
    if (fs::path p = *sub ? folder / sub : folder; fs::is_directory(p, ec))
      to.push_back(p);
  std::vector<std::string> packages;
  for (const auto &entry : fs::directory_iterator(folder / "nvidia", ec))
    if (fs::is_directory(entry.path() / "lib", ec))
      packages.push_back(entry.path() / "lib");
  std::sort(packages.begin(), packages.end());
  to.insert(to.end(), packages.begin(), packages.end());
}

/// The folders of Python's packages. Running python3 costs some 30 ms, once per process.
const std::vector<std::string> &pythonFolders() {
  static const std::vector<std::string> found = [] {
    std::vector<std::string> folders;
    FILE *out = popen("python3 -c 'import sys; print(\"\\n\".join(sys.path))' 2>/dev/null", "r");
    if (!out)
      return folders;
    std::string text;
    char buffer[4096];
    while (size_t n = fread(buffer, 1, sizeof buffer, out))
      text.append(buffer, n);
    pclose(out);
    llvm::SmallVector<llvm::StringRef, 16> lines;
    llvm::StringRef(text).split(lines, '\n', -1, /*KeepEmpty=*/false);
    for (llvm::StringRef line : lines)
      if (line.starts_with("/"))  // no relative path: code of the current folder must not be loaded
        addBelow(folders, line.str());
    return folders;
  }();
  return found;
}

/// Tries one file after another and keeps the reason why the first unfit one was refused.
struct Search {
  const Facts &f;
  std::string path, why;
  CudaVersion version;
  bool unfit = false;

  void *refuse(void *library, const std::string &reason) {
    if (!unfit)
      why = reason;
    unfit = true;
    if (library)
      dlclose(library);
    return nullptr;
  }

  /// Loads `file`, a path or a bare name for the loader to find. Null if there is none or it does not fit.
  void *open(const std::string &file) {
    std::error_code ec;
    const bool bare = file.find('/') == std::string::npos;
    if (!bare && !fs::exists(file, ec))
      return nullptr;
    void *library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const std::string reason = dlerror();
      // With this message there is no file of that bare name. Other messages may name a missing dependency.
      return bare && llvm::StringRef(reason).starts_with(file + ": cannot open shared object file")
                 ? nullptr
                 : refuse(nullptr, "the loader refuses " + reason);
    }
    void *probe = dlsym(library, f.probe);
    Dl_info info;
    const std::string where = bare && probe && dladdr(probe, &info) && info.dli_fname ? info.dli_fname : file;
    const std::optional<CudaVersion> v = probe ? f.version(probe) : std::nullopt;
    if (!v)
      return refuse(library, fmt::format("{} does not tell its version: it is damaged, or another library", where));
    if (!f.takes(*v))
      return refuse(library, fmt::format("{} is version {}, and {} is needed", where, v->str(), f.range()));
    if (f.builtFor) {
      void *told = dlsym(library, f.builtFor);
      const size_t cuda = told ? reinterpret_cast<size_t (*)()>(told)() : 0;
      if (cuda < 13000)
        return refuse(library, fmt::format("{} is built for CUDA {}, and 13 is needed", where, cuda / 1000));
    }
    path = where;
    version = *v;
    return library;
  }

  void *in(const std::vector<std::string> &folders) {
    for (const std::string &folder : folders)
      for (const char *name : f.files)
        if (name)
          if (void *library = open(folder.empty() ? name : folder + "/" + name))
            return library;
    return nullptr;
  }

  void *everywhere() {
    std::vector<std::string> folders;
    if (const std::vector<std::string> only = listOf(ownVariable("GPTC_CUDA")); !only.empty()) {
      for (const std::string &folder : only)
        addBelow(folders, fs::absolute(folder));
      void *library = in(folders);
      if (!library && !unfit)
        why = fmt::format("GPTC_CUDA={} has no {}", ownVariable("GPTC_CUDA"), f.files[0]);
      return library;
    }
    for (const std::string &folder : listOf(std::getenv("LD_LIBRARY_PATH")))
      folders.push_back(folder);
    if (!f.ofDriver)
      for (const char *variable : {"CUDA_HOME", "CUDA_PATH"})
        if (const char *home = std::getenv(variable); home && *home)
          addBelow(folders, fs::absolute(home));
    folders.push_back("");
    if (f.ofDriver) {
      // The driver's folders in containers, WSL and NixOS.
      for (const char *folder : {"/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/opengl-driver/lib"})
        folders.push_back(folder);
    } else {
      addBelow(folders, "/usr/local/cuda");
      const char *data = std::getenv("XDG_DATA_HOME"), *home = std::getenv("HOME");
      if (data && *data == '/')
        addBelow(folders, fs::path(data) / "gptc/cuda");
      else if (home && *home)
        addBelow(folders, fs::path(home) / ".local/share/gptc/cuda");
    }
    if (void *library = in(folders))
      return library;
    if (!f.ofDriver)
      if (void *library = in(pythonFolders()))
        return library;
    if (!unfit)
      why = fmt::format("there is no {} in any place that is looked at", f.files[0]);
    return nullptr;
  }
};

std::string remedyOf(const Facts &f) {
  if (const char *only = ownVariable("GPTC_CUDA"); only && *only)
    return "set GPTC_CUDA to folders that hold it, or leave it unset, so that the usual places are looked at";
  std::error_code ec;
  if (f.ofDriver)
    return fs::exists("/proc/driver/nvidia/version", ec)
               ? "the kernel's part of the driver is there and its libraries are not: start the container with its "
                 "GPUs (--gpus all), or install the driver's libraries of the same release, 580 or later"
               : "install NVIDIA's driver of release 580 or later";
  return "install the CUDA toolkit 13, or run `tools/setup --cuda`, or set CUDA_HOME or LD_LIBRARY_PATH to where it is";
}

}  // namespace

std::string CudaVersion::str() const {
  return patch ? fmt::format("{}.{}.{}", major, minor, patch) : fmt::format("{}.{}", major, minor);
}

void *CudaLibrary::symbol(const char *function) const { return handle ? dlsym(handle, function) : nullptr; }

CudaLibrary CudaLibrary::lookUp(CudaLibraryId id) {
  const Facts &f = factsOf(id);
  // cuDNN loads NVRTC and cuBLASLt by name when it needs them. If they are loaded before, it uses the same ones.
  if (id == cudnn) {
    find(nvrtc);
    find(cublasLt);
  }
  Search search{f, {}, {}, {}};
  CudaLibrary l;
  l.id = id;
  l.name = f.name;
  l.needed = f.needed;
  l.range = f.needed > CudaVersion{} ? f.range() : "";
  l.handle = search.everywhere();
  if (l.handle) {
    l.path = search.path;
    l.version = search.version;
  } else {
    l.why = search.why;
    l.unfit = search.unfit;
    l.remedy = remedyOf(f);
  }
  return l;
}

const CudaLibrary &CudaLibrary::find(CudaLibraryId id) {
  switch (id) {
#define GPTC_LIBRARY(name)                                                                                             \
  case name: {                                                                                                         \
    static const CudaLibrary found = lookUp(name);                                                                     \
    return found;                                                                                                      \
  }
    GPTC_LIBRARY(driver)
    GPTC_LIBRARY(nvml)
    GPTC_LIBRARY(nvrtc)
    GPTC_LIBRARY(cublasLt)
    GPTC_LIBRARY(cudnn)
    GPTC_LIBRARY(nccl)
    GPTC_LIBRARY(nvtx)
#undef GPTC_LIBRARY
  }
  GPTC_CHECK(false, "no such library");
}

const CudaLibrary &CudaLibrary::get(CudaLibraryId id) {
  const CudaLibrary &l = find(id);
  if (!l)
    throw UserError(ErrorCode::TargetUnavailable, fmt::format("{} cannot be loaded: {}", l.name, l.why), l.remedy);
  return l;
}

}  // namespace gptc
