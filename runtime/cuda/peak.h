// The kernel by which a GPU's peak is measured.
#pragma once

#include "ir/schedule.h"

#include <string>

namespace gptc::cuda {

struct PeakKernel {
  std::string text;  // of a function "peak" (const int *steps, float *out), one element of `out` for each thread
  int threads;       // of a block
  double operationsPerStep;  // of a thread
};

/// Chains of products in registers, without memory: by the tensor cores as our kernels use them where they take
/// operands of `compute` ("bf16", "fp16", "tf32"), else by fused multiply-adds of f32.
PeakKernel peakKernel(const Target &target, llvm::StringRef compute);

}  // namespace gptc::cuda
