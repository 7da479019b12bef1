// Fills GPU memory with random numbers for measurements: a product's power draw, and with it the clock, depends on the
// bits of its operands.
#pragma once

#include "ir/type.h"
#include "runtime/cuda/gpu.h"

#include <map>
#include <memory>

namespace gptc::cuda {

class RandomMemory {
public:
  /// `most`: bytes of the largest buffer to fill.
  RandomMemory(const Gpu &gpu, size_t most) : gpu(gpu), most(most) {}
  /// Enqueues the fill on the GPU's stream: numbers in [-1, 1) for f32, bf16 and f16; zeros for other types.
  void fill(DevicePtr at, size_t bytes, DType dtype);

private:
  struct Pattern {
    std::unique_ptr<DeviceMemory> memory;
    size_t bytes;
  };
  const Gpu &gpu;
  const size_t most;
  std::map<DType, Pattern> patterns;
  const Pattern &pattern(DType dtype);
};

}  // namespace gptc::cuda
