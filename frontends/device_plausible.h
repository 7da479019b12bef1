// What no device is like: figures of a cluster file that are another unit's or a data sheet's headline. A forecast from
// them would be a thousand times or twice too good, and look like any other.
#pragma once

#include "frontends/cluster_config.h"

#include <string>
#include <vector>

namespace gptc {

struct Implausible {
  const char *key;      // "device.peak_bf16"
  std::string message;  // "twice the dense peak of an H100: that is with sparsity"
  std::string label;    // beside the value
  std::string likely;   // what is meant, as in "989 TFLOP/s"; empty where nothing is likelier than anything else
};

/// Against the data sheet where the name is one of ir/gpu_sheets.h's; else peaks that only sparsity reaches, and
/// figures that no device has side by side. Of figures that are 0 (left out, or refused already) nothing is said.
std::vector<Implausible> implausible(const DeviceSpec &d);

}  // namespace gptc
