// The step of a plan as the cost model expects it, in the form in which gptrun writes a measured one (log.trace_steps):
// the same kernels in the same order, under the same names.
#pragma once

#include "passes/analysis/cost.h"
#include "runtime/device/profile.h"

namespace gptc {

/// Kernels of one rank, each behind the one before, as they run when they are watched. Those of collectives take what
/// goes over a link between ranks of one machine. `rates`: of the rank.
Trace expectedTrace(const Module &planned, const Target &target, const MachineRates &rates);

}  // namespace gptc
