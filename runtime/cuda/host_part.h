// Groups that the host runs between two graphs of a function (the offload pass): updates of parameters whose moments
// lie in host memory. Their operands in GPU memory are copied over in batches. Each batch uses one of two slots of the
// host's arena, so that one is copied while the previous one is computed. The results are copied back from the slot.
#pragma once

#include "runtime/cuda/gpu.h"
#include "runtime/device/binding.h"
#include "runtime/device/waves.h"
#include "support/thread_pool.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <deque>
#include <vector>

namespace gptc::cuda {

/// A kernel for the host with its code. Its `streams` and `params` must not move.
struct HostKernel {
  CompiledKernel code;
  std::vector<void *> params;    // operands, results, streams
  std::vector<int64_t> streams;  // values that the last params point to
};

class HostPart {
public:
  /// The addresses of the GPU's arena and the host's arena, and in the latter the offset and bytes of the first slot.
  struct Memory {
    DevicePtr arena;
    std::byte *host;
    int64_t slots, slotBytes;  // offset of the first slot, bytes of each
  };
  HostPart(const Gpu &gpu, const Memory &memory, unsigned threads) : gpu(gpu), memory(memory), threads(threads) {}

  /// Appends a kernel whose code and streams are set, and sets its params.
  void add(HostKernel &kernel, const BoundGroup &group);
  size_t size() const { return items.size(); }
  /// Runs all kernels after the work on the GPU's stream. Copies back to the GPU may still be under way. `await` waits
  /// for an event.
  void run(ThreadPool &pool, llvm::function_ref<void(Event)> await);
  /// Runs one kernel and waits until its results are on the GPU.
  void runAlone(size_t kernel, ThreadPool &pool, llvm::function_ref<void()> settle);

private:
  struct Copy {
    std::byte *host;
    DevicePtr device;
    size_t bytes;
  };
  struct Item {
    const HostKernel *kernel;
    std::vector<Copy> in, out;
    std::vector<Copy> padded;  // results whose padding must be zeroed before the copy back
  };
  struct Batch {
    size_t begin, end;  // items
    Waves waves;
    EventHandle arrived;
    Batch(const Gpu &gpu, size_t first, unsigned threads) : begin(first), end(first), waves(threads), arrived(gpu) {}
  };
  const Gpu &gpu;
  const Memory memory;
  const unsigned threads;
  std::deque<Item> items;
  std::deque<Batch> batches;
  int64_t used = 0;  // bytes of the last batch's slot

  void bring(const Item &item);
  static void clearPadding(const Item &item);
  void sendBack(const Item &item);
};

}  // namespace gptc::cuda
