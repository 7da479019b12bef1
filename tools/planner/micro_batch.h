// train.micro_batch = "auto" on a GPU: as many sequences as its memory holds.
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

/// The memory of the GPU that a plan is for.
struct GpuMemory {
  int64_t bytes = 0;  // 0: nothing is known of it
  std::string of;     // "NVIDIA H200", "compile.gpu_memory"
};

/// compile.gpu_memory where that is written, a size or a model's name; else that of the visible GPU (`here`); else that
/// of the GPU of the target's architecture that has least (ir/gpu_sheets.h).
GpuMemory gpuMemoryOf(const Config &config, const Target &target, bool here);
/// What an arena may take of it: 90%, without what the context, loaded code and the libraries that the target calls
/// take beside it, and NCCL where there are several ranks: a quarter of the memory at most.
int64_t arenaRoom(const GpuMemory &memory, const Target &target, int64_t ranks);

/// The largest of `candidates` (rising) of which `bytes` is at most `room`, by asking for at most `most` of them.
/// `bytes` rises with them, nearly on a line; nullopt where it cannot be. `first` is asked for first, or the largest
/// candidate below it. nullopt where none is known to fit.
///
///   1. Between the largest that is known to fit and the smallest that is known not to, the next one is where the line
///      through two known points meets `room`.
///   2. It is moved so far that halving what is left ends in time: of 63 candidates six suffice, whatever `bytes` does.
std::optional<int64_t> largestThatFits(llvm::ArrayRef<int64_t> candidates, int64_t room, int most, int64_t first,
                                       const std::function<std::optional<int64_t>(int64_t)> &bytes);

struct MicroBatchChoice {
  int64_t sequences = 0;
  int plannings = 0;       // that it took
  int64_t arenaBytes = 0;  // of the plan that was chosen by
  int64_t room = 0;        // for its arena
  bool fits = false;       // false: not even one sequence does
  GpuMemory memory;
};

/// Chooses train.micro_batch of a configuration that leaves it open, and sets it: the largest divisor of a rank's
/// sequences in a step whose plan fits, without recomputation unless compile.remat asks for it, and calls libraries for
/// as many groups as a smaller one does. `plan` plans a configuration. nullopt where it is not open, or the memory is
/// not known.
std::optional<MicroBatchChoice> chooseMicroBatch(Config &config, const Target &target, bool here,
                                                 const std::function<std::unique_ptr<Module>(const Config &)> &plan);

}  // namespace gptc
