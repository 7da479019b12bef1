// Detects implausible figures in a cluster file: a wrong unit, or a data sheet's headline figure. A forecast from them
// would be off by a factor of two or a thousand without looking wrong.
#pragma once

#include "frontends/cluster_config.h"

#include <string>
#include <vector>

namespace gptc {

struct Implausible {
  const char *key;      // "device.peak_bf16"
  std::string message;  // "twice the dense peak of an H100: that is with sparsity"
  std::string label;    // shown beside the value
  std::string likely;   // the probable value, "989 TFLOP/s"; "" if none is
};

/// Compares with the data sheet if ir/gpu_sheets.h has the device's name; else finds peaks that require sparsity, and
/// combinations that no device has. Ignores figures of 0 (absent or already refused).
std::vector<Implausible> implausible(const DeviceSpec &d);

}  // namespace gptc
