// Seconds of a step of gptc's own plans on a GPU by the code of their kernels (gpu_step.h), for forecasts that need not
// be quick: the kernels of two shallow plans are compiled and disassembled.
#pragma once

#include "frontends/toml_config.h"
#include "ir/gpu_sheets.h"

#include <string>

namespace gptc {

struct CodeTimes {
  double passes = 0;     // forward, backward and recomputation of all micro-batches, without collectives
  double optimizer = 0;  // norm of the gradient and update; 0 where the host has the optimizer's state
};

/// The times of one rank of `config`'s plan. Groups of layers are alike, so plans of two and three layers say what
/// those of all take. UserError(TargetUnavailable) without NVRTC or nvdisasm; those of planModule. `cacheDir`: of
/// compiled kernels.
CodeTimes timesByCode(const Config &config, const GpuSheet &gpu, const std::string &cacheDir);

}  // namespace gptc
