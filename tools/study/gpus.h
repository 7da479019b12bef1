// The GPUs of this machine, as the driver shows them, without making a context on any.
#pragma once

#include "codegen/cuda/libraries.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gptc {

struct Gpu {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int64_t bytes = 0;
  int multiprocessors = 0;
  /// "sm_90"
  std::string arch() const;
};

struct Gpus {
  std::string why;                             // the driver cannot show any: what it says; else empty
  std::string remedy;                          // then
  std::vector<Gpu> visible;                    // in CUDA's numbering
  int present = -1;                            // in the machine or container, hidden ones too; -1: not known
  std::string release;                         // of the driver, "580.95.05"; empty where it is not known
  std::vector<std::pair<int, int>> strangers;  // of visible ones: pairs that do not reach each other's memory
};

/// Asks `driver`, which is found, and NVML or /proc.
Gpus listGpus(const CudaLibrary &driver);

}  // namespace gptc
