#include "tools/study/gpus.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>

namespace gptc {

namespace {

// Values of cuda.h, which do not change.
enum Attribute { multiprocessorCount = 16, capabilityMajor = 75, capabilityMinor = 76 };
enum Failure { stubLibrary = 34, noDevice = 100, notReady = 802, driverMismatch = 803, noCompatibility = 804 };

struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*errorName)(int, const char **) = nullptr;
  int (*errorString)(int, const char **) = nullptr;
  int (*count)(int *) = nullptr;
  int (*get)(int *, int) = nullptr;
  int (*name)(char *, int, int) = nullptr;
  int (*memory)(size_t *, int) = nullptr;
  int (*attribute)(int *, int, int) = nullptr;
  int (*canAccessPeer)(int *, int, int) = nullptr;

  /// The first missing function; null if there is none.
  const char *bind(const CudaLibrary &l) {
    const char *missing = nullptr;
    auto one = [&](auto &f, const char *called) { missing = missing || l.bind(f, called) ? missing : called; };
    one(init, "cuInit");
    one(errorName, "cuGetErrorName");
    one(errorString, "cuGetErrorString");
    one(count, "cuDeviceGetCount");
    one(get, "cuDeviceGet");
    one(name, "cuDeviceGetName");
    one(memory, "cuDeviceTotalMem_v2");
    one(attribute, "cuDeviceGetAttribute");
    one(canAccessPeer, "cuDeviceCanAccessPeer");
    return missing;
  }
  std::string text(int error) const {
    const char *called = nullptr, *means = nullptr;
    errorName(error, &called);
    errorString(error, &means);
    return fmt::format("{}: {}", called ? called : fmt::format("error {}", error), means ? means : "no more is known");
  }
};

std::string remedyOf(int error, const Gpus &g) {
  const char *shown = std::getenv("CUDA_VISIBLE_DEVICES");
  switch (error) {
  case noDevice:
    if (shown && g.present > 0)
      return fmt::format("unset CUDA_VISIBLE_DEVICES, or let it name some of 0 to {}", g.present - 1);
    return "use a machine with a GPU, or start the container with its GPUs (--gpus all)";
  case stubLibrary:
    return "take the toolkit's stubs folder out of LD_LIBRARY_PATH: its libcuda.so.1 is for linking only";
  case notReady:
    return "start NVIDIA's fabric manager (systemctl start nvidia-fabricmanager), which these GPUs need";
  case driverMismatch:
  case noCompatibility:
    return "install libraries of the release that the kernel runs (/proc/driver/nvidia/version), or boot the new one";
  default:
    return "see what nvidia-smi says; /dev/nvidia* must be readable and writable by this user";
  }
}

/// Finds the GPUs in the machine regardless of CUDA_VISIBLE_DEVICES, and the driver's release.
void askBelow(Gpus &g) {
  namespace fs = std::filesystem;
  if (const CudaLibrary &nvml = CudaLibrary::find(CudaLibraryId::nvml)) {
    int (*init)() = nullptr, (*shutdown)() = nullptr, (*count)(unsigned *) = nullptr,
        (*release)(char *, unsigned) = nullptr;
    if (nvml.bind(init, "nvmlInit_v2") && nvml.bind(shutdown, "nvmlShutdown") &&
        nvml.bind(count, "nvmlDeviceGetCount_v2") && nvml.bind(release, "nvmlSystemGetDriverVersion") && init() == 0) {
      unsigned n = 0;
      char text[96] = {};
      if (count(&n) == 0)
        g.present = int(n);
      if (release(text, sizeof text) == 0)
        g.release = text;
      shutdown();
    }
  }
  std::error_code ec;
  const fs::path listed = "/proc/driver/nvidia/gpus";
  if (g.present < 0 && fs::is_directory(listed, ec))
    g.present = int(std::distance(fs::directory_iterator(listed, ec), fs::directory_iterator()));
}

}  // namespace

std::string Gpu::arch() const { return fmt::format("sm_{}{}", major, minor); }

Gpus listGpus(const CudaLibrary &library) {
  Gpus g;
  askBelow(g);
  Driver driver;
  if (const char *missing = driver.bind(library)) {
    g.why = fmt::format("{} has no function {}", library.path, missing);
    g.remedy = library.remedy;
    return g;
  }
  int n = 0, error = driver.init(0);
  if (error == 0)
    error = driver.count(&n);
  if (error == 0 && n == 0)
    error = noDevice;
  if (error) {
    g.why = driver.text(error);
    g.remedy = remedyOf(error, g);
    return g;
  }
  for (int i = 0; i < n; ++i) {
    int device = 0;
    Gpu gpu;
    char name[256] = {};
    size_t bytes = 0;
    error = driver.get(&device, i);
    error = error ? error : driver.name(name, sizeof name, device);
    error = error ? error : driver.memory(&bytes, device);
    error = error ? error : driver.attribute(&gpu.multiprocessors, multiprocessorCount, device);
    error = error ? error : driver.attribute(&gpu.major, capabilityMajor, device);
    error = error ? error : driver.attribute(&gpu.minor, capabilityMinor, device);
    if (error) {
      g.why = fmt::format("device {}: {}", i, driver.text(error));
      g.remedy = remedyOf(error, g);
      return g;
    }
    gpu.name = name;
    gpu.bytes = int64_t(bytes);
    g.visible.push_back(gpu);
  }
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b) {
      int there = 0, back = 0;
      if (driver.canAccessPeer(&there, a, b) || driver.canAccessPeer(&back, b, a) || !there || !back)
        g.withoutPeerAccess.push_back({a, b});
    }
  return g;
}

}  // namespace gptc
