// Named ranges in Nsight's time lines; no effect if NVTX is not available.
#pragma once

#include <string>

namespace gptc::cuda {

/// A named range of host time, from construction to destruction. Nsight shows the GPU work it launches under its name.
class NvtxRange {
public:
  explicit NvtxRange(const std::string &name);
  ~NvtxRange();
  NvtxRange(const NvtxRange &) = delete;
};

}  // namespace gptc::cuda
