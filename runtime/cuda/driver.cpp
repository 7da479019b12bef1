#include "runtime/cuda/driver.h"

#include "codegen/cuda/libraries.h"
#include "runtime/cuda/kernel_fault.h"

#include <cstdlib>

namespace gptc::cuda {

namespace {

/// The name of the first function that the library lacks; null if it has all.
const char *bind(Driver &d, const CudaLibrary &library) {
#define GPTC_BIND(member, symbol, params)                                                                              \
  if (!library.bind(d.member, #symbol))                                                                                \
    return #symbol;
  GPTC_DRIVER_FUNCTIONS(GPTC_BIND)
#undef GPTC_BIND
  return nullptr;
}

const Driver *load(std::string &why) {
  const CudaLibrary &library = CudaLibrary::get(CudaLibraryId::driver);
  static Driver d;
  if (const char *missing = bind(d, library)) {
    why = fmt::format("{} has no function {}", library.path, missing);
    return nullptr;
  }
  int devices = 0;
  Result r = d.init(0);
  if (r == success)
    r = d.deviceGetCount(&devices);
  if (r == success && devices > 0)
    return &d;  // kept until the process ends
  why = r == success || r == noDevice ? "the driver sees no GPU" : fmt::format("cuInit: {}", d.describe(r));
  if (const char *visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    why += fmt::format(" (CUDA_VISIBLE_DEVICES={})", visible);
  return nullptr;
}

}  // namespace

const Driver &Driver::get() {
  static std::string why;
  static const Driver *const found = load(why);
  if (!found)
    throw UserError(ErrorCode::TargetUnavailable, fmt::format("no GPU can be used: {}", why),
                    "`gptc doctor` says what this machine has; plans of --target cpu run everywhere");
  return *found;
}

std::string Driver::describe(Result r) const {
  const char *name = nullptr, *text = nullptr;
  getErrorName(r, &name);
  getErrorString(r, &text);
  return fmt::format("{} ({}): {}", name ? name : "an unknown error", int(r), text ? text : "");
}

void noMemoryFor(const char *what) {
  throw UserError(ErrorCode::OutOfMemory, fmt::format("the GPU has no memory left for {}", what),
                  "compile with a smaller train.micro_batch, or end other programs on the GPU (nvidia-smi)");
}

KernelFault::KernelFault(const std::string &error, const char *noticedBy)
    : InternalError(
          __FILE__, __LINE__,
          fmt::format("a kernel failed on the GPU, and which of a step is not known, as they run as one graph: "
                      "{}, noticed by {}; `gptrun --check PLAN` runs them one by one and names it",
                      error, noticedBy)),
      error(error) {}

static bool isFaultOfAKernel(Result r) {
  switch (r) {
  case illegalAddress:
  case launchTimeout:
  case deviceAssert:
  case hardwareStackError:
  case illegalInstruction:
  case misalignedAddress:
  case invalidAddressSpace:
  case invalidProgramCounter:
  case launchFailed:
    return true;
  default:
    return false;
  }
}

void Driver::check(Result r, const char *what) const {
  if (r == outOfMemory)
    noMemoryFor(what);
  if (isFaultOfAKernel(r))
    throw KernelFault(describe(r), what);
  GPTC_CHECK(r == success, "{}: {}", what, describe(r));
}

}  // namespace gptc::cuda
