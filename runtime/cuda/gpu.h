// One GPU: its primary context, its stream, and owners of device and pinned host memory.
#pragma once

#include "ir/kernel/schedule.h"
#include "runtime/cuda/driver.h"

#include <string>
#include <vector>

namespace gptc::cuda {

/// A visible GPU. Its context becomes current in the constructing thread, the only one that may use it.
class Gpu {
public:
  /// Uses visible GPU `number`. Throws UserError(TargetUnavailable) if there is none or it does not run code for
  /// `target`.
  explicit Gpu(const Target &target, int number = 0);
  ~Gpu();
  Gpu(const Gpu &) = delete;

  const Driver &d;
  Context context = nullptr;
  Stream stream = nullptr;
  std::string name;           // "NVIDIA H200"
  std::string cpu;            // its architecture, as in Target::cpu: "sm_90"
  unsigned architecture = 0;  // the same as a number: 90
  int multiprocessors = 0;
  int sharedBytes = 0;  // shared memory available to a block
  int cacheBytes = 0;   // of the second-level cache
  /// Calls of the driver from this thread are for this GPU from here on. The constructor does so for its own thread.
  void enterThread() const;
  /// Bytes that can still be allocated, and bytes in total.
  size_t available() const;
  size_t total() const;
  /// Waits for all work on the stream. Throws as Driver::check: KernelFault if a kernel has failed.
  void wait() const;

private:
  Device device = 0;
};

class DeviceMemory {
public:
  /// Allocates without initialising. Throws UserError(OutOfMemory).
  DeviceMemory(const Gpu &gpu, size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory &) = delete;
  DevicePtr at = 0;

private:
  const Gpu &gpu;
};

/// Host memory that the GPU can copy from and to asynchronously.
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

/// The architecture of this compute capability, with the suffix of its GPU-specific instructions if it has any:
/// "sm_90a".
std::string architectureOf(int major, int minor);
/// Whether NVRTC compiles for GPUs of this capability; without it nothing runs there.
bool isSupported(int major, int minor);
/// Whether code for `compiled` ("sm_90a") runs on a GPU of that capability.
bool runsOn(const std::string &compiled, int major, int minor);
/// The architecture of the first visible GPU, for `--target cuda`. Throws UserError(TargetUnavailable) if there is none
/// or it is too old.
std::string architectureHere();
/// Number of visible GPUs.
int visibleGpus();
/// Throws UserError(TargetUnavailable) if fewer GPUs are visible than `ranks` on this machine; each rank takes one.
void requireGpus(int64_t ranks);
/// The GPU of a local rank: the one with the rank's number; or the only visible one if another launcher gives each rank
/// its own (`srun --gpus-per-task=1`). Throws like requireGpus.
int gpuOfRank(int localRank, int ranksHere, bool launchedByOthers);

}  // namespace gptc::cuda
