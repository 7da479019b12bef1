// One GPU: its primary context, a stream, and memory on both sides that frees itself.
#pragma once

#include "ir/kernel/schedule.h"
#include "runtime/cuda/driver.h"

#include <string>
#include <vector>

namespace gptc::cuda {

/// A visible GPU, the first unless told. Its context is current in the thread that made this; only that thread may use
/// it.
class Gpu {
public:
  /// UserError(TargetUnavailable) where there is none, or none that runs code for `target`.
  explicit Gpu(const Target &target, int number = 0);
  ~Gpu();
  Gpu(const Gpu &) = delete;

  const Driver &d;
  Context context = nullptr;
  Stream stream = nullptr;
  std::string name;           // "NVIDIA H200"
  std::string cpu;            // its architecture, as Target::cpu has it: "sm_90"
  unsigned architecture = 0;  // the same as a number: 90
  int multiprocessors = 0;
  int sharedBytes = 0;  // of shared memory that a block may have
  int cacheBytes = 0;   // of the second level
  /// Bytes that may still be allocated, and that there are in all.
  size_t available() const;
  size_t total() const;
  /// Waits for all that the stream has been given. InternalError where a kernel has failed.
  void wait() const;

private:
  Device device = 0;
};

class DeviceMemory {
public:
  /// The content is undefined. UserError(OutOfMemory).
  DeviceMemory(const Gpu &gpu, size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory &) = delete;
  DevicePtr at = 0;

private:
  const Gpu &gpu;
};

/// Memory of the host from and to which the GPU copies by itself.
class PinnedMemory {
public:
  PinnedMemory(const Gpu &gpu, size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory &) = delete;
  std::byte *at = nullptr;

private:
  const Gpu &gpu;
};

class EventHandle {
public:
  EventHandle(const Gpu &gpu, EventFlags flags = eventDisableTiming);
  ~EventHandle();
  EventHandle(const EventHandle &) = delete;
  Event event = nullptr;

private:
  const Gpu &gpu;
};

/// Architecture of a GPU of this compute capability, with the instructions of that one GPU where it has such: "sm_90a".
std::string architectureOf(int major, int minor);
/// Whether NVRTC compiles for GPUs of this capability, and so whether anything can run there.
bool isSupported(int major, int minor);
/// Whether code for `compiled` ("sm_90a") runs on a GPU of that capability.
bool runsOn(const std::string &compiled, int major, int minor);
/// The architecture of the first visible GPU, for `--target cuda`. UserError(TargetUnavailable): none, or an old one.
std::string architectureHere();
/// GPUs that are visible.
int visibleGpus();
/// UserError(TargetUnavailable) where fewer GPUs are visible than `ranks` on this machine, each of which takes one.
void requireGpus(int64_t ranks);
/// The GPU of one of the ranks of this machine: that of its number; or the only one that it sees, where a launcher that
/// is not ours gives each rank its own (`srun --gpus-per-task=1`). UserError as requireGpus.
int gpuOfRank(int localRank, int ranksHere, bool launchedByOthers);

}  // namespace gptc::cuda
