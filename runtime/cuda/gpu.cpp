#include "runtime/cuda/gpu.h"

#include "support/diagnostics.h"

#include "llvm/ADT/StringRef.h"

#include <array>
#include <cstdlib>

namespace gptc::cuda {

namespace {

std::pair<int, int> capabilityOf(const Driver &d, Device device) {
  int major = 0, minor = 0;
  d.check(d.deviceGetAttribute(&major, computeMajor, device), "cuDeviceGetAttribute");
  d.check(d.deviceGetAttribute(&minor, computeMinor, device), "cuDeviceGetAttribute");
  return {major, minor};
}

std::string nameOf(const Driver &d, Device device) {
  std::array<char, 256> text{};
  d.check(d.deviceGetName(text.data(), int(text.size()), device), "cuDeviceGetName");
  return text.data();
}

std::string gigabytes(size_t n) { return fmt::format("{:.2f} GB", double(n) / 1e9); }

void requireSupport(const std::string &name, int major, int minor) {
  if (!isSupported(major, minor))
    throw UserError(
        ErrorCode::TargetUnavailable,
        fmt::format("the GPU here, {}, is sm_{}{}, and NVRTC 13 starts at sm_75", name, major, minor),
        "use a GPU of sm_75 or later; where the machine has one, CUDA_VISIBLE_DEVICES lets a run see it alone "
        "(`gptc doctor --target cuda` lists them)");
}

}  // namespace

std::string architectureOf(int major, int minor) {
  return fmt::format("sm_{}{}{}", major, minor, major >= 9 ? "a" : "");
}

bool isSupported(int major, int minor) { return 10 * major + minor >= 75; }

bool runsOn(const std::string &compiled, int major, int minor) {
  llvm::StringRef rest = compiled;
  int number = 0;
  if (!rest.consume_front("sm_") || rest.consumeInteger(10, number) || number / 10 != major)
    return false;
  // `a`: that GPU only. `f` and plain code: also later minor versions of the same major version.
  return rest == "a" ? number % 10 == minor : number % 10 <= minor;
}

std::string architectureHere() {
  const Driver &d = Driver::get();
  Device device = 0;
  d.check(d.deviceGet(&device, 0), "cuDeviceGet");
  auto [major, minor] = capabilityOf(d, device);
  requireSupport(nameOf(d, device), major, minor);
  return architectureOf(major, minor);
}

int visibleGpus() {
  const Driver &d = Driver::get();
  int visible = 0;
  d.check(d.deviceGetCount(&visible), "cuDeviceGetCount");
  return visible;
}

int gpuOfRank(int localRank, int ranksHere, bool launchedByOthers) {
  if (launchedByOthers && visibleGpus() == 1)
    return 0;
  requireGpus(ranksHere);
  return localRank;
}

void requireGpus(int64_t ranks) {
  const int visible = visibleGpus();
  if (ranks <= visible)
    return;
  const char *shown = std::getenv("CUDA_VISIBLE_DEVICES");
  throw UserError(
      ErrorCode::TargetUnavailable,
      fmt::format("{} {} device{}, {} were asked for",
                  shown ? fmt::format("CUDA_VISIBLE_DEVICES={} shows", shown) : std::string("this machine has"),
                  visible, visible == 1 ? "" : "s", ranks),
      fmt::format("--ranks-per-node {}, or {}", visible,
                  shown ? fmt::format("let CUDA_VISIBLE_DEVICES name {}", ranks) : "a machine with as many GPUs"));
}

Gpu::Gpu(const Target &target, int number) : d(Driver::get()) {
  d.check(d.deviceGet(&device, number), "cuDeviceGet");
  name = nameOf(d, device);
  auto [major, minor] = capabilityOf(d, device);
  requireSupport(name, major, minor);
  cpu = fmt::format("sm_{}{}", major, minor);
  architecture = unsigned(10 * major + minor);
  if (!runsOn(target.cpu, major, minor))
    throw UserError(ErrorCode::TargetUnavailable,
                    fmt::format("the plan is for {}, and the GPU here, {}, is {}", target.name, name, cpu),
                    fmt::format("compile with --target cuda:{}", architectureOf(major, minor)));
  d.check(d.deviceGetAttribute(&multiprocessors, cuda::multiprocessors, device), "cuDeviceGetAttribute");
  d.check(d.deviceGetAttribute(&cacheBytes, l2CacheBytes, device), "cuDeviceGetAttribute");
  d.check(d.deviceGetAttribute(&sharedBytes, maxSharedPerBlockOptin, device), "cuDeviceGetAttribute");
  if (Result r = d.primaryContextRetain(&context, device); r != success)
    throw UserError(r == outOfMemory ? ErrorCode::OutOfMemory : ErrorCode::TargetUnavailable,
                    fmt::format("{} cannot be used: {}", name, d.describe(r)), "nvidia-smi shows what else runs on it");
  enterThread();
  d.check(d.streamCreate(&stream, streamNonBlocking), "cuStreamCreate");
}

void Gpu::enterThread() const { d.check(d.contextSetCurrent(context), "cuCtxSetCurrent"); }

// A destructor cannot report errors; a failed kernel has been reported to whoever waited for it.
Gpu::~Gpu() {
  d.streamSynchronize(stream);
  d.streamDestroy(stream);
  d.primaryContextRelease(device);
}

size_t Gpu::available() const {
  size_t available = 0, total = 0;
  d.check(d.memGetInfo(&available, &total), "cuMemGetInfo");
  return available;
}
size_t Gpu::total() const {
  size_t available = 0, total = 0;
  d.check(d.memGetInfo(&available, &total), "cuMemGetInfo");
  return total;
}

void Gpu::wait() const { d.check(d.streamSynchronize(stream), "cuStreamSynchronize"); }

DeviceMemory::DeviceMemory(const Gpu &gpu, size_t bytes) : gpu(gpu) {
  const Result r = gpu.d.memAlloc(&at, bytes);
  if (r == outOfMemory)
    throw UserError(ErrorCode::OutOfMemory,
                    fmt::format("{} refuses {} of its memory ({} are free)", gpu.name, gigabytes(bytes),
                                gigabytes(gpu.available())),
                    "compile with a smaller train.micro_batch, or end other programs on the GPU (nvidia-smi)");
  gpu.d.check(r, "cuMemAlloc");
}
DeviceMemory::~DeviceMemory() { gpu.d.memFree(at); }

PinnedMemory::PinnedMemory(const Gpu &gpu, size_t bytes) : gpu(gpu) {
  void *p = nullptr;
  const Result r = gpu.d.memHostAlloc(&p, bytes, 0);
  if (r == outOfMemory)
    throw UserError(ErrorCode::OutOfMemory, fmt::format("the system refuses {} of pinned memory", gigabytes(bytes)),
                    "check `ulimit -l` and the memory of the control group");
  gpu.d.check(r, "cuMemHostAlloc");
  at = static_cast<std::byte *>(p);
}
PinnedMemory::~PinnedMemory() { gpu.d.memFreeHost(at); }

EventHandle::EventHandle(const Gpu &gpu, EventFlags flags) : gpu(gpu) {
  gpu.d.check(gpu.d.eventCreate(&event, flags), "cuEventCreate");
}
EventHandle::~EventHandle() { gpu.d.eventDestroy(event); }

}  // namespace gptc::cuda
