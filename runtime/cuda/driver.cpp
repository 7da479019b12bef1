#include "runtime/cuda/driver.h"

#include "ir/diagnostics.h"

#include <cstdlib>
#include <dlfcn.h>

namespace gptc::cuda {

namespace {

/// The name of the first function that the library lacks, or null.
const char *bind(Driver &d, void *library) {
#define GPTC_BIND(member, symbol, params)                                                                              \
  d.member = reinterpret_cast<decltype(d.member)>(dlsym(library, #symbol));                                            \
  if (!d.member)                                                                                                       \
    return #symbol;
  GPTC_DRIVER_FUNCTIONS(GPTC_BIND)
#undef GPTC_BIND
  return nullptr;
}

std::string versionText(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }

const Driver *load(std::string &why) {
  const char *only = std::getenv("GPTC_LIBCUDA");
  const char *name = only && *only ? only : "libcuda.so.1";
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    why = fmt::format("there is no driver: {}", dlerror());
    return nullptr;
  }
  static Driver d;
  const char *missing = bind(d, library);
  if (d.driverGetVersion && d.driverGetVersion(&d.version) == success && d.version < neededDriver) {
    why = fmt::format("the driver is one of CUDA {}, and {} is needed", versionText(d.version),
                      versionText(neededDriver));
  } else if (missing) {
    why = fmt::format("{} has no function {}", name, missing);
  } else {
    int devices = 0;
    Result r = d.init(0);
    if (r == success)
      r = d.deviceGetCount(&devices);
    if (r == success && devices > 0)
      return &d;  // for the life of the process
    why = r == success || r == noDevice ? "the driver sees no GPU" : fmt::format("cuInit: {}", d.describe(r));
    if (const char *visible = std::getenv("CUDA_VISIBLE_DEVICES"))
      why += fmt::format(" (CUDA_VISIBLE_DEVICES={})", visible);
  }
  dlclose(library);
  return nullptr;
}

}  // namespace

const Driver *Driver::find(std::string &why) {
  static std::string reason;
  static const Driver *const found = load(reason);
  why = reason;
  return found;
}

const Driver &Driver::get() {
  std::string why;
  const Driver *found = find(why);
  if (!found)
    throw UserError(ErrorCode::TargetUnavailable, fmt::format("no GPU can be used: {}", why),
                    "run on a machine with an NVIDIA GPU and a driver of CUDA 13 (580 or later), or compile with "
                    "--target cpu; `gptc doctor` says what this machine has");
  return *found;
}

std::string Driver::describe(Result r) const {
  const char *name = nullptr, *text = nullptr;
  getErrorName(r, &name);
  getErrorString(r, &text);
  return fmt::format("{} ({}): {}", name ? name : "an unknown error", int(r), text ? text : "");
}

void Driver::check(Result r, const char *what) const { GPTC_CHECK(r == success, "{}: {}", what, describe(r)); }

}  // namespace gptc::cuda
