// The expected cost of a plan's run, as `gptc compile` prints it: by the cost model with typical rates, without
// measurement.
#pragma once

#include "runtime/plan/plan.h"
#include "tools/estimate/planned.h"

#include <string>

namespace gptc {

/// The link between ranks of one machine: CPUs use shared memory, where a sum reads two arrays and writes one; GPUs use
/// links of 200 GB/s.
LinkRates linkOnOneMachine(const Target &target, const MachineRates &rates);
/// Seconds per step for collectives over it.
double collectivesOnOneMachine(const PlannedStep &step, const Target &target, const MachineRates &rates);

struct Expected {
  double step = 0;       // seconds
  double run = 0;        // seconds for all steps and evaluations
  double bytes = 0;      // memory of one rank's process, or of its GPU
  bool network = false;  // ranks are on several machines: communication time is not included
};

/// The expected cost on `nodes` machines like this one, whose cores the ranks of a CPU plan share.
Expected expectedOf(const Plan &plan, int64_t nodes);

/// "about 12 ms a step, 2 min for 2000 steps, 0.4 GB".
std::string inWords(const Expected &e, const Plan &plan);

/// A duration in two digits: "12 ms", "1.5 s", "45 min", "3.2 h", "12 days".
std::string roughly(double seconds);

}  // namespace gptc
