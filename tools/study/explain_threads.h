// How a plan's work divides among the threads of a CPU that need not be here, for `gptc explain PLAN --threads N`.
#pragma once

#include "runtime/plan/plan.h"
#include "support/json.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gptc {

/// What threads do between two barriers: one phase of a wave (runtime/device/waves.h).
struct Stretch {
  std::string place;    // of the kernel in it that has the most tasks
  int64_t kernels = 0;  // side by side
  int64_t tasks = 0;    // of all of them
  int64_t pieces = 0;   // in which the pool hands the tasks out
  int64_t times = 0;    // in one call of the function
  unsigned threads = 1;
  /// The share of the threads' time in which they work, if all pieces take equally long.
  double busy() const;
};

struct FunctionOnThreads {
  std::string name;
  std::vector<Stretch> stretches;  // equal ones once, in order
  /// In one call: what a thread does alone, of several or as the only one, needs none.
  int64_t barriers() const;
};

struct PlanOnThreads {
  unsigned threads = 1;
  std::vector<FunctionOnThreads> functions;
  int64_t stackBytes = 0;  // the most that the buffers of a kernel take of a thread's stack
};

/// With the schedules of the plan, whatever threads it was compiled for. Throws UserError(Usage) for a plan for GPUs.
PlanOnThreads onThreads(const Plan &plan, unsigned threads);

/// Of each function the numbers and its least busy stretches.
std::string tableOf(const PlanOnThreads &all);
nlohmann::ordered_json jsonOf(const PlanOnThreads &all);

}  // namespace gptc
