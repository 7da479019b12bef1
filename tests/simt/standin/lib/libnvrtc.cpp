// A stand-in for libnvrtc.so.13 that compiles for the host: the text as it is, but with the shim of tests/simt in the
// place of the primitives of its device layer. What it makes is for the stand-in driver only:
//
//   GPTC-STANDIN | arch sm_90a | kernel NAME THREADS | ... | bytes N | (empty line) | a shared library of N bytes
//
// GPTC_STANDIN_REJECT=TEXT|TEXT: a program in which one of these stands does not compile; _REJECT_AS=6: with that code.
// GPTC_STANDIN_SPILL=TEXT: the log of a program in which it stands tells of spilled registers.
// GPTC_STANDIN_NVRTC=12: its version. GPTC_STANDIN_PERTURB=1: functions that CUDA computes to 2 ulp only are off by as
// much, and tensor cores too.
#include "tests/simt/host_compile.h"

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <vector>

namespace {

/// NVRTC 13 opens the driver, if there is one, when it first compiles.
void openDriver() {
  [[maybe_unused]] static const bool opened = [] {
    Dl_info self;
    if (!dladdr(reinterpret_cast<void *>(&openDriver), &self) || !self.dli_fname)
      return false;
    const std::filesystem::path driver = std::filesystem::path(self.dli_fname).parent_path() / "libcuda.so.1";
    if (void *library = dlopen(driver.c_str(), RTLD_NOW | RTLD_LOCAL))
      if (void *init = dlsym(library, "cuInit"))
        return reinterpret_cast<int (*)(unsigned)>(init)(0) == 0;
    return false;
  }();
}

enum Result { success = 0, invalidInput = 3, invalidProgram = 4, invalidOption = 5, compilation = 6, noArtifact = 13 };

struct Program {
  std::string text, layer, log, image;
  bool compiled = false;
};

Result copy(const std::string &from, char *to) {
  std::memcpy(to, from.c_str(), from.size() + 1);
  return success;
}

}  // namespace

extern "C" {

Result nvrtcVersion(int *major, int *minor) {
  const char *asked = std::getenv("GPTC_STANDIN_NVRTC");
  *major = asked ? std::atoi(asked) : 13;
  *minor = 90;  // none of NVIDIA's, so that nothing made here is mistaken for theirs in a cache
  return success;
}

const char *nvrtcGetErrorString(Result r) { return r == success ? "NVRTC_SUCCESS" : "an error of the stand-in"; }

Result nvrtcCreateProgram(Program **p, const char *source, const char *, int headers, const char *const *texts,
                          const char *const *names) {
  if (!source || headers != 1 || std::strcmp(names[0], "gptc_device.h") != 0)
    return invalidInput;
  *p = new Program{source, texts[0], "", ""};
  return success;
}

Result nvrtcDestroyProgram(Program **p) {
  delete *p;
  *p = nullptr;
  return success;
}

Result nvrtcCompileProgram(Program *p, int count, const char *const *options) {
  if (!p || p->compiled)
    return invalidProgram;
  openDriver();
  std::string arch;
  for (int i = 0; i < count; ++i) {
    const std::string o = options[i];
    if (o.rfind("--gpu-architecture=sm_", 0) == 0)
      arch = o.substr(o.find('=') + 1);
    else if (o != "--std=c++17" && o != "--fmad=false" && o != "--ftz=false" && o != "--prec-div=true" &&
             o != "--prec-sqrt=true" && o != "--ptxas-options=-v" && o != "--device-as-default-execution-space")
      return invalidOption;
  }
  if (arch.empty())
    return invalidOption;
  const char *rejects = std::getenv("GPTC_STANDIN_REJECT");
  std::istringstream all(rejects ? rejects : "");
  for (std::string reject; std::getline(all, reject, '|');)
    if (p->text.find(reject) != std::string::npos) {
      p->log = "kernels.cu(1): error: the stand-in was told to reject " + reject + "\n";
      const char *code = std::getenv("GPTC_STANDIN_REJECT_AS");
      return code ? Result(std::atoi(code)) : compilation;
    }
  // Behind this line stands what follows from the primitives, and is the same here.
  const std::string mark = "#define GPTC_METHOD __device__ __forceinline__\n";
  const size_t common = p->layer.find(mark);
  if (common == std::string::npos)
    return invalidInput;
  std::string header = "GPTC-STANDIN\narch " + arch + "\n", entries = "#include \"entry.h\"\n";
  const std::regex kernel("GPTC_(?:TILE_)?KERNEL\\((\\w+), *(\\d+)\\)");
  for (std::sregex_iterator k(p->text.begin(), p->text.end(), kernel), end; k != end; ++k) {
    header += "kernel " + (*k)[1].str() + " " + (*k)[2].str() + "\n";
    entries += "GPTC_STANDIN_ENTRY(" + (*k)[1].str() + ")\n";
  }
  const std::string folder = gptc::simt::temporaryFolder();
  std::filesystem::copy(GPTC_SOURCE_DIR "/tests/simt/standin/lib/entry.h", folder + "/entry.h");
  p->log = gptc::simt::compileForHost(folder, p->layer.substr(common + mark.size()), p->text + "\n" + entries,
                                      std::getenv("GPTC_STANDIN_PERTURB") ? "-DGPTC_PERTURB" : "");
  if (p->log.empty()) {
    std::ostringstream library;
    library << std::ifstream(folder + "/kernels.so", std::ios::binary).rdbuf();
    p->image = header + "bytes " + std::to_string(library.str().size()) + "\n\n" + library.str();
    const char *spills = std::getenv("GPTC_STANDIN_SPILL");
    const std::string bytes = spills && p->text.find(spills) != std::string::npos ? "16" : "0";
    p->log = "ptxas info    : " + bytes + " bytes stack frame, " + bytes + " bytes spill stores, " + bytes +
             " bytes spill loads\nptxas info    : Used 32 registers\n";
    p->compiled = true;
  }
  std::filesystem::remove_all(folder);
  return p->compiled ? success : compilation;
}

Result nvrtcGetProgramLogSize(Program *p, size_t *n) { return *n = p->log.size() + 1, success; }
Result nvrtcGetProgramLog(Program *p, char *to) { return copy(p->log, to); }
Result nvrtcGetCUBINSize(Program *p, size_t *n) { return *n = p->image.size(), p->compiled ? success : noArtifact; }
Result nvrtcGetCUBIN(Program *p, char *to) {
  std::memcpy(to, p->image.data(), p->image.size());
  return p->compiled ? success : noArtifact;
}
Result nvrtcGetPTXSize(Program *p, size_t *n) { return *n = p->text.size() + 1, p->compiled ? success : noArtifact; }
Result nvrtcGetPTX(Program *p, char *to) { return copy(p->text, to); }
}
