// Groups that the host runs between two graphs of a function (the pass offload): the update of parameters whose moments
// lie in its memory. What they take of the GPU's memory comes over in batches, each into one of two slots of the host's
// arena while the one before is computed, and what they make goes back from there.
#pragma once

#include "runtime/cuda/gpu.h"
#include "runtime/device/binding.h"
#include "runtime/device/waves.h"
#include "support/thread_pool.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <deque>
#include <vector>

namespace gptc::cuda {

/// One of them, with its code. Its streams and parameters must stay where they are.
struct HostKernel {
  CompiledKernel code;
  std::vector<void *> params;    // operands, results, streams
  std::vector<int64_t> streams;  // content of the last params
};

class HostPart {
public:
  /// Where things are: the GPU's arena, the host's, and in that the first slot, of so many bytes.
  struct Memory {
    DevicePtr arena;
    std::byte *host;
    int64_t slots, slotBytes;
  };
  HostPart(const Gpu &gpu, const Memory &memory, unsigned threads) : gpu(gpu), memory(memory), threads(threads) {}

  /// Puts a kernel, which has its code and streams, behind the others, and gives it its parameters.
  void add(HostKernel &kernel, const BoundGroup &group);
  size_t size() const { return items.size(); }
  /// Runs all, behind what the GPU's stream has been given; what goes back may still be on its way. `await` waits for
  /// an event.
  void run(ThreadPool &pool, llvm::function_ref<void(Event)> await);
  /// Runs one of them alone, and waits for all.
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
    std::vector<Copy> padded;  // results whose padding is to be zero when they go back
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
  int64_t used = 0;  // of the last batch's slot

  void bring(const Item &item);
  static void clearPadding(const Item &item);
  void sendBack(const Item &item);
};

}  // namespace gptc::cuda
