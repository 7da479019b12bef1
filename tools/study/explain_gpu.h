// What a step costs on a GPU by the code of its kernels, for `gptc explain PLAN --target GPU`.
#pragma once

#include "support/json.h"
#include "tools/estimate/gpu_step.h"

#include <string>

namespace gptc {

/// The data sheet of a GPU that can run a plan. UserError: UnknownValue for a name that no data sheet has, Usage for a
/// plan for CPUs or for another architecture.
const GpuSheet &gpuForPlan(const Target &target, const std::string &name);

/// Tables of the parts of a step and of a token that is sampled, if there is any, with the dearest generated kernels.
std::string tableOf(const GpuStep &step, const GpuStep &token, const GpuRates &rates);
nlohmann::ordered_json jsonOf(const GpuStep &step, const GpuStep &token, const GpuRates &rates);

}  // namespace gptc
