#include "codegen/cuda/nvrtc.h"

#include "codegen/cuda/device_text.h"
#include "codegen/cuda/libraries.h"
#include "support/diagnostics.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <iterator>
#include <memory>

namespace gptc {

namespace {

// The needed declarations of nvrtc.h, whose ABI does not change.
using Program = struct ProgramImpl *;
using Result = int;
constexpr Result success = 0, compilationFailed = 6, builtinsMissing = 7, compilerFailed = 11;

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

  /// The name of the first function that the library lacks, or null.
  const char *bind(const CudaLibrary &library) {
#define GPTC_BIND(f)                                                                                                   \
  if (!library.bind(f, #f))                                                                                            \
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
  const CudaLibrary &library = CudaLibrary::find(CudaLibraryId::nvrtc);
  auto api = std::make_unique<Api>();
  if (!library) {
    why = library.why;
  } else if (const char *missing = api->bind(library)) {
    why = fmt::format("{} has no function {}", library.path, missing);
  } else {
    auto *found = new Nvrtc;  // for the life of the process
    found->api = api.release();
    return found;
  }
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
  if (const Nvrtc *found = find(why))
    return *found;
  const CudaLibrary &library = CudaLibrary::get(CudaLibraryId::nvrtc);  // throws if there is none
  throw UserError(ErrorCode::TargetUnavailable, fmt::format("NVRTC cannot be loaded: {}", why),
                  fmt::format("install a newer one than {}", library.version.str()));
}

/// Reads spilled bytes and registers from the assembler's report.
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
  if (r == compilationFailed || r == compilerFailed)
    throw CudaRejected(c.log.empty() ? api->nvrtcGetErrorString(r) : c.log, text);
  if (r == builtinsMissing)
    throw UserError(ErrorCode::TargetUnavailable,
                    fmt::format("NVRTC lacks a part of itself: {}", llvm::StringRef(c.log).trim().str()),
                    "install the whole of NVRTC 13 in one folder, libnvrtc-builtins too");
  api->check(r, "nvrtcCompileProgram");
  c.cubin = api->text(program, api->nvrtcGetCUBINSize, api->nvrtcGetCUBIN, "nvrtcGetCUBIN");
  c.ptx = api->text(program, api->nvrtcGetPTXSize, api->nvrtcGetPTX, "nvrtcGetPTX");
  c.ptx.resize(std::min(c.ptx.size(), c.ptx.find('\0')));
  readReport(c);
  return c;
}

}  // namespace gptc
