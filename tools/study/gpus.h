// Lists this machine's GPUs by the driver, without creating a context.
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
  std::string why;           // the driver's reason if it can show none; else ""
  std::string remedy;        // what to do then
  std::vector<Gpu> visible;  // in CUDA's order
  int present = -1;          // GPUs in the machine or container, hidden ones too; -1: unknown
  std::string release;       // of the driver: "580.95.05"; "" if unknown
  std::vector<std::pair<int, int>>
      withoutPeerAccess;  // pairs of visible GPUs without peer access to each other's memory
};

/// Asks `driver`, which must have been found, and NVML or /proc.
Gpus listGpus(const CudaLibrary &driver);

}  // namespace gptc
