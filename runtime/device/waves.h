// Kernels one behind the other of which none touches what another one writes form a wave: they need no barrier between
// them. Small kernels then fill the machine together, the last tasks of one do not leave threads idle before the next,
// and the optimizer's update of all parameters is one sweep (as multi-tensor optimizers do it on GPUs).
#pragma once

#include "codegen/codegen.h"
#include "support/thread_pool.h"

#include <cstdint>
#include <map>
#include <vector>

namespace gptc {

/// The phases of the kernels of a wave that run side by side. What the pool hands out are pieces, each some tasks of
/// one kernel: tasks of different kernels differ too much in length to be handed out in runs.
class WavePhase {
public:
  void add(const CompiledPhase &phase, void *const *params, unsigned threads);
  void run(ThreadPool &pool) const;

private:
  struct Part {
    const CompiledPhase *phase;
    void *const *params;
    int64_t firstPiece, grain;  // tasks of a piece
  };
  std::vector<Part> parts;
  int64_t pieces = 0;

  void runPieces(int64_t begin, int64_t end) const;
};

/// A kernel with its memory; code and params must outlive the waves.
struct WaveKernel {
  const CompiledKernel *code;
  llvm::ArrayRef<void *> params;
  llvm::ArrayRef<int64_t> bytes;  // of each parameter
  unsigned reads;                 // the first so many parameters are only read, the others written (and maybe read)
};

/// Cuts a list of kernels into waves. The order of the list is kept but within a wave, and a wave is as long as the
/// kernels' memory allows; so results do not depend on it.
class Waves {
public:
  explicit Waves(unsigned threads) : threads(threads) {}
  void add(const WaveKernel &kernel);
  void run(ThreadPool &pool) const;
  size_t size() const { return waves.size(); }

private:
  using Range = std::pair<const char *, const char *>;
  /// Disjoint ranges, begin to end.
  class Ranges {
  public:
    bool overlaps(Range r) const;
    void insert(Range r);
    void clear() { ends.clear(); }

  private:
    std::map<const char *, const char *> ends;
  };

  const unsigned threads;
  std::vector<std::vector<WavePhase>> waves;  // of each wave its phases, with a barrier between one and the next
  Ranges read, written;                       // by the last wave
};

}  // namespace gptc
