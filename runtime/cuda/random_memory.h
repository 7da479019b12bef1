// Random numbers in a GPU's memory, for what measures it: how much power a product draws, and with that its clock,
// follows from the bits of its operands.
#pragma once

#include "ir/type.h"
#include "runtime/cuda/gpu.h"

#include <map>
#include <memory>

namespace gptc::cuda {

class RandomMemory {
public:
  /// `most`: bytes of the largest piece that will be filled.
  RandomMemory(const Gpu &gpu, size_t most) : gpu(gpu), most(most) {}
  /// Numbers in [-1, 1) of f32, bf16 or f16; memory of other types becomes 0. Enqueued on the GPU's stream.
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
