// What a GPU can do at best, measured: the roofs of its kernels.
#pragma once

#include "runtime/cuda/gpu.h"
#include "runtime/device/peak.h"

#include "llvm/ADT/StringRef.h"

namespace gptc::cuda {

/// The greatest product of n x n matrices of random numbers that was timed.
struct ProductPeak {
  double flops = 0;  // FLOP/s; 0 where cuBLASLt is not here, or has no such product
  int64_t n = 0;
};

/// By cuBLASLt with operands in "fp32", "bf16", "fp16" or "tf32", sums in fp32: n grows by doubling up to 8192, as long
/// as memory is free for it and a product takes less than 60 ms. Of the algorithms that the library proposes the
/// fastest counts.
ProductPeak measureProduct(const Gpu &gpu, llvm::StringRef compute);

/// The data sheet's peak of a GPU of this name (ir/gpu_sheets.h); 0 where the name is not known, or the GPU has no
/// tensor cores for the type.
SheetPeak sheetPeak(llvm::StringRef gpu, llvm::StringRef compute);

/// Bytes/s of a copy within the GPU's memory, read and written each counted, in buffers that no cache holds; smaller
/// ones where memory is short.
double measureCopy(const Gpu &gpu);

/// The rate of measureProduct, kept for the GPU, its driver and the library. The GPU must outlive it.
PeakRecord peakOfGpu(const Gpu &gpu, llvm::StringRef compute, const std::string &cacheDir);

}  // namespace gptc::cuda
