#include "codegen/nvrtc.h"

#include "codegen/emit_cuda.h"
#include "ir/diagnostics.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <iterator>
#include <memory>
#include <vector>

namespace gptc {

namespace {

// What we need of nvrtc.h, whose ABI does not change.
using Program = struct ProgramImpl *;
using Result = int;
constexpr Result success = 0, compilationFailed = 6;

}  // namespace

struct Nvrtc::Api {
  Result (*nvrtcVersion)(int *major, int *minor);
  const char *(*nvrtcGetErrorString)(Result);
  Result (*nvrtcCreateProgram)(Program *, const char *source, const char *name, int headers, const char *const *texts,
                               const char *const *names);
  Result (*nvrtcDestroyProgram)(Program *);
  Result (*nvrtcCompileProgram)(Program, int options, const char *const *);
  Result (*nvrtcGetProgramLogSize)(Program, size_t *);
  Result (*nvrtcGetProgramLog)(Program, char *);
  Result (*nvrtcGetCUBINSize)(Program, size_t *);
  Result (*nvrtcGetCUBIN)(Program, char *);
  Result (*nvrtcGetPTXSize)(Program, size_t *);
  Result (*nvrtcGetPTX)(Program, char *);
  void *library;

  /// The name of the first function that the library lacks, or null.
  const char *bind() {
    auto one = [&](auto &f, const char *name) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(library, name));
      return f != nullptr;
    };
#define GPTC_BIND(f)                                                                                                   \
  if (!one(f, #f))                                                                                                     \
    return #f;
    GPTC_BIND(nvrtcVersion)
    GPTC_BIND(nvrtcGetErrorString)
    GPTC_BIND(nvrtcCreateProgram)
    GPTC_BIND(nvrtcDestroyProgram)
    GPTC_BIND(nvrtcCompileProgram)
    GPTC_BIND(nvrtcGetProgramLogSize)
    GPTC_BIND(nvrtcGetProgramLog)
    GPTC_BIND(nvrtcGetCUBINSize)
    GPTC_BIND(nvrtcGetCUBIN)
    GPTC_BIND(nvrtcGetPTXSize)
    GPTC_BIND(nvrtcGetPTX)
#undef GPTC_BIND
    return nullptr;
  }

  void check(Result r, const char *what) const { GPTC_CHECK(r == success, "{}: {}", what, nvrtcGetErrorString(r)); }
  std::string text(Program p, Result (*size)(Program, size_t *), Result (*get)(Program, char *),
                   const char *what) const {
    size_t n = 0;
    check(size(p, &n), what);
    std::string s(n, '\0');
    if (n)
      check(get(p, s.data()), what);
    return s;
  }
};

const Nvrtc *Nvrtc::load(std::string &why) {
  std::vector<std::string> places;
  if (const char *only = std::getenv("GPTC_NVRTC"); only && *only) {
    places.push_back(only);
  } else {
    std::vector<std::string> folders = {""};
    for (const char *variable : {"CUDA_HOME", "CUDA_PATH"})
      if (const char *home = std::getenv(variable); home && *home)
        for (const char *sub : {"/lib64/", "/lib/", "/targets/x86_64-linux/lib/"})
          folders.push_back(home + std::string(sub));
    folders.push_back("/usr/local/cuda/lib64/");
    for (const std::string &f : folders)
      for (const char *name : {"libnvrtc.so.13", "libnvrtc.so"})
        places.push_back(f + name);
  }
  std::string reason;
  for (const std::string &place : places) {
    void *library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      reason = reason.empty() ? dlerror() : reason;
      continue;
    }
    auto api = std::make_unique<Api>();
    api->library = library;
    auto found = std::unique_ptr<Nvrtc>(new Nvrtc);
    if (const char *missing = api->bind())
      reason = fmt::format("{} has no function {}", place, missing);
    else if (api->nvrtcVersion(&found->versionMajor, &found->versionMinor) != success || found->versionMajor < 13)
      reason = fmt::format("{} is NVRTC {}.{}, and 13 is needed", place, found->versionMajor, found->versionMinor);
    else {
      found->api = api.release();
      return found.release();  // for the life of the process
    }
    dlclose(library);
  }
  why = reason;
  return nullptr;
}

const Nvrtc *Nvrtc::find(std::string &why) {
  static std::string reason;
  static const Nvrtc *const found = load(reason);
  why = reason;
  return found;
}

const Nvrtc &Nvrtc::get() {
  std::string why;
  const Nvrtc *found = find(why);
  if (!found)
    throw UserError(ErrorCode::TargetUnavailable, fmt::format("NVRTC cannot be loaded: {}", why),
                    "install the CUDA toolkit 13, or set CUDA_HOME to its folder or GPTC_NVRTC to its libnvrtc.so");
  return *found;
}

std::string Nvrtc::path() const {
  Dl_info info;
  return dladdr(reinterpret_cast<void *>(api->nvrtcVersion), &info) && info.dli_fname ? info.dli_fname : "";
}

/// Spilled bytes and registers, from the assembler's report.
static void readReport(CompiledCuda &c) {
  llvm::StringRef log = c.log;
  llvm::SmallVector<llvm::StringRef, 32> words;
  log.split(words, ' ', -1, /*KeepEmpty=*/false);
  for (size_t i = 1; i < words.size(); ++i) {
    // "0 bytes spill stores, 0 bytes spill loads", "Used 32 registers"
    int64_t n;
    if (words[i] == "spill" && i >= 2 && !words[i - 2].getAsInteger(10, n))
      c.spilledBytes += n;
    if (words[i].starts_with("registers") && !words[i - 1].getAsInteger(10, n))
      c.registers = std::max(c.registers, int(n));
  }
}

CompiledCuda Nvrtc::compile(const std::string &text, const Target &target) const {
  const std::string layer = cudaDeviceLayer(), arch = "--gpu-architecture=" + target.cpu;
  const char *headers[] = {layer.c_str()}, *names[] = {"gptc_device.h"};
  const char *options[] = {
      arch.c_str(),      "--std=c++17",      "--fmad=false",       "--ftz=false",
      "--prec-div=true", "--prec-sqrt=true", "--ptxas-options=-v", "--device-as-default-execution-space"};
  Program program = nullptr;
  api->check(api->nvrtcCreateProgram(&program, text.c_str(), "kernels.cu", 1, headers, names), "nvrtcCreateProgram");
  struct Destroy {
    const Api &api;
    Program p;
    ~Destroy() { api.nvrtcDestroyProgram(&p); }
  } destroy{*api, program};
  const Result r = api->nvrtcCompileProgram(program, std::size(options), options);
  CompiledCuda c;
  c.log = api->text(program, api->nvrtcGetProgramLogSize, api->nvrtcGetProgramLog, "nvrtcGetProgramLog");
  c.log.resize(std::min(c.log.size(), c.log.find('\0')));
  GPTC_CHECK(r != compilationFailed, "NVRTC rejects a kernel:\n{}\n{}", c.log, text);
  api->check(r, "nvrtcCompileProgram");
  c.cubin = api->text(program, api->nvrtcGetCUBINSize, api->nvrtcGetCUBIN, "nvrtcGetCUBIN");
  c.ptx = api->text(program, api->nvrtcGetPTXSize, api->nvrtcGetPTX, "nvrtcGetPTX");
  c.ptx.resize(std::min(c.ptx.size(), c.ptx.find('\0')));
  readReport(c);
  return c;
}

}  // namespace gptc
