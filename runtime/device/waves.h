// A wave is a run of consecutive kernels of which none touches what another writes, so they need no barrier between
// them. Small kernels then fill the machine together, threads do not idle between one kernel's last tasks and the next
// kernel, and the optimizer updates all parameters in one sweep (like multi-tensor optimizers on GPUs).
#pragma once

#include "codegen/codegen.h"
#include "support/thread_pool.h"

#include <cstdint>
#include <map>
#include <vector>

namespace gptc {

/// Corresponding phases of a wave's kernels, which run side by side. The pool hands out pieces, each some tasks of one
/// kernel, because tasks of different kernels differ too much in length to share a piece.
class WavePhase {
public:
  void add(const CompiledPhase &phase, void *const *params, unsigned threads);
  void run(ThreadPool &pool) const;
  /// How many pieces the pool hands out; a single one stays with the calling thread.
  int64_t size() const { return pieces; }

private:
  struct Part {
    const CompiledPhase *phase;
    void *const *params;
    int64_t firstPiece, grain;  // grain: tasks per piece
  };
  std::vector<Part> parts;
  int64_t pieces = 0;

  void runPieces(int64_t begin, int64_t end) const;
};

/// A kernel with its memory. Code and params must outlive the waves.
struct WaveKernel {
  const CompiledKernel *code;
  llvm::ArrayRef<void *> params;
  llvm::ArrayRef<int64_t> bytes;  // bytes behind each parameter
  unsigned reads;                 // the first `reads` parameters are read-only, the others written and perhaps read
};

/// Cuts a list of kernels into waves, each as long as the kernels' memory allows. Order is given up only within a wave,
/// so results do not depend on the cut.
class Waves {
public:
  explicit Waves(unsigned threads) : threads(threads) {}
  void add(const WaveKernel &kernel);
  void run(ThreadPool &pool) const;
  size_t size() const { return waves.size(); }
  /// The phases of a wave, with barriers in between.
  llvm::ArrayRef<WavePhase> operator[](size_t wave) const { return waves[wave]; }

private:
  using Range = std::pair<const char *, const char *>;
  /// Disjoint ranges, from begin to end.
  class Ranges {
  public:
    bool overlaps(Range r) const;
    void insert(Range r);
    void clear() { ends.clear(); }

  private:
    std::map<const char *, const char *> ends;
  };

  const unsigned threads;
  std::vector<std::vector<WavePhase>> waves;  // the phases of each wave, with barriers in between
  Ranges read, written;                       // memory of the last wave
};

}  // namespace gptc
