// What a run of a plan will take, as `gptc compile` says it: by the cost model at typical rates, nothing is measured.
#pragma once

#include "runtime/plan/plan.h"
#include "tools/estimate/planned.h"

#include <string>

namespace gptc {

/// Seconds that the collectives of a step take between ranks of one machine: of CPUs through shared memory, where a sum
/// reads two arrays and writes one; of GPUs over links of 200 GB/s.
double collectivesOnOneMachine(const PlannedStep &step, const Target &target, const MachineRates &rates);

struct Expected {
  double step = 0;       // seconds
  double run = 0;        // of all steps and evaluations
  double bytes = 0;      // of one rank's process, or of its GPU
  bool network = false;  // ranks stand on several machines: what they send takes time that is not in it
};

/// Ranks of a CPU plan share the cores of `nodes` machines like this one.
Expected expectedOf(const Plan &plan, int64_t nodes);

/// "about 12 ms a step, 2 min for 2000 steps, 0.4 GB".
std::string inWords(const Expected &e, const Plan &plan);

/// "12 ms", "1.5 s", "45 min", "3.2 h", "12 days": what a person takes down of a duration.
std::string roughly(double seconds);

}  // namespace gptc
