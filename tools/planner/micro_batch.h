// Chooses train.micro_batch = "auto" on a GPU: as many sequences as fit in its memory.
#pragma once

#include "frontends/toml_config.h"
#include "ir/graph.h"
#include "ir/kernel/schedule.h"

#include "llvm/ADT/ArrayRef.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace gptc {

/// Memory of the GPU that a plan is for.
struct GpuMemory {
  int64_t bytes = 0;  // 0: unknown
  std::string of;     // its source: "NVIDIA H200", "compile.gpu_memory"
};

/// compile.gpu_memory (a size or a GPU's name) if set; else the visible GPU's (`here`); else that of the smallest GPU
/// with the target's architecture (ir/gpu_sheets.h).
GpuMemory gpuMemoryOf(const Config &config, const Target &target, bool here);
/// Bytes available to an arena: 90% of the memory minus what the context, loaded code, the libraries that the target
/// calls and, with several ranks, NCCL take. The deduction is at most a quarter of the memory.
int64_t arenaRoom(const GpuMemory &memory, const Target &target, int64_t ranks);

/// The largest of `candidates` (ascending) whose `bytes` is at most `room`, with at most `most` calls of `bytes`;
/// nullopt if none is known to fit. `bytes` rises almost linearly, and returns nullopt for a candidate that is
/// impossible. The search starts at `first` or the largest candidate below it.
///
///   1. Between the largest candidate known to fit and the smallest known not to fit, try the one where the line
///      through two known points reaches `room`.
///   2. Limit that step such that bisection can finish within the remaining calls: for 63 candidates six calls suffice,
///      whatever `bytes` returns.
std::optional<int64_t> largestThatFits(llvm::ArrayRef<int64_t> candidates, int64_t room, int most, int64_t first,
                                       const std::function<std::optional<int64_t>(int64_t)> &bytes);

struct MicroBatchChoice {
  int64_t sequences = 0;
  int plannings = 0;       // number of plans made for the choice
  int64_t arenaBytes = 0;  // of the chosen plan
  int64_t room = 0;        // bytes available to its arena
  bool fits = false;       // false if not even one sequence fits
  GpuMemory memory;
};

/// If the configuration leaves train.micro_batch open and the memory is known, chooses and sets it; else nullopt. It is
/// the largest divisor of a rank's sequences per step whose plan fits, without recomputation unless compile.remat asks
/// for it, and calls libraries for as many groups as smaller ones do. `plan` plans a configuration.
std::optional<MicroBatchChoice> chooseMicroBatch(Config &config, const Target &target, bool here,
                                                 const std::function<std::unique_ptr<Module>(const Config &)> &plan);

}  // namespace gptc
