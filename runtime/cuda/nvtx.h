// Names for Nsight's time lines, where NVTX is to be had; nothing happens else.
#pragma once

#include <string>

namespace gptc::cuda {

/// A range of the host's time, as long as this lives; what it starts on the GPU is shown under its name.
class NvtxRange {
public:
  explicit NvtxRange(const std::string &name);
  ~NvtxRange();
  NvtxRange(const NvtxRange &) = delete;
};

}  // namespace gptc::cuda
