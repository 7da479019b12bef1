// Measures a GPU's peak rates: the roofs of its kernels.
#pragma once

#include "runtime/cuda/gpu.h"
#include "runtime/device/peak.h"

#include "llvm/ADT/StringRef.h"

namespace gptc::cuda {

/// The rate of the largest timed product of two n x n matrices of random numbers.
struct ProductPeak {
  double flops = 0;  // FLOP/s; 0 if cuBLASLt is missing or has no such product
  int64_t n = 0;
};

/// Measures cuBLASLt with operands in "fp32", "bf16", "fp16" or "tf32" and fp32 sums. n doubles up to 8192 while memory
/// suffices and a product takes less than 60 ms. Counts the fastest algorithm that the library proposes.
ProductPeak measureProduct(const Gpu &gpu, llvm::StringRef compute);

/// The data sheet's peak of a GPU of this name (ir/gpu_sheets.h); 0 if the name is unknown or the GPU has no tensor
/// cores for the type.
SheetPeak sheetPeak(llvm::StringRef gpu, llvm::StringRef compute);

/// Bytes/s of a copy within the GPU's memory, counting reads and writes, in buffers larger than any cache (smaller if
/// memory is short).
double measureCopy(const Gpu &gpu);

/// The rate of measureProduct, recorded per GPU, driver and library. The GPU must outlive the record.
PeakRecord peakOfGpu(const Gpu &gpu, llvm::StringRef compute, const std::string &cacheDir);

}  // namespace gptc::cuda
