// Memory that plans for this machine may take.
#pragma once

#include "ir/kernel/schedule.h"

#include <cstdint>

namespace gptc {

struct Config;

/// In bytes.
struct PlanMemory {
  int64_t ofPlan = 0;  // a plan alone: the budget of remat = "auto". Ranks are known for certain only when they start
  int64_t ofRank = 0;  // of a rank beside the others of its machine, for which "auto" in [parallel] is decided
};

/// The rest is for processes themselves and others. The memory of a GPU elsewhere is known only by compile.gpu_memory.
/// `here`: the target is this machine's GPU. `ranksPerNode`: ranks on this machine; 0: all of the plan.
PlanMemory memoryForPlans(const Config &config, const Target &target, bool here, int64_t ranksPerNode);

}  // namespace gptc
