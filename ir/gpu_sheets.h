// What data sheets say of GPUs: dense peaks with sums in f32, memory and its bandwidth, caches. The cost model takes
// the rates of an architecture from here, a cluster file is held against it, and whoever has a GPU's name can look it
// up.
#pragma once

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

#include <vector>

namespace gptc {

struct GpuSheet {
  llvm::StringRef name;     // words that the name of such a GPU holds
  llvm::StringRef arch;     // without a letter behind it
  double fp32, tf32, half;  // TFLOP/s; `half` of fp16 and bf16. With structured sparsity tensor cores have twice that.
  double dram;              // GB/s
  double l2;                // MiB
  double memory;            // GB, of 10^9 bytes: a GPU has some more
};

llvm::ArrayRef<GpuSheet> gpuSheets();

/// By the name that a driver gives ("NVIDIA H100 80GB HBM3") or that people write ("H100-SXM5"). Null for a name that
/// is not known, and for parts and mobile versions of a GPU, whose figures are others.
const GpuSheet *gpuSheet(llvm::StringRef name);

/// The one of exactly this architecture that has least memory; null where none is known.
const GpuSheet *leastMemory(llvm::StringRef arch);

/// The largest for training of an architecture, "sm_90a" and the like, or of the one before it.
const GpuSheet &largestGpu(llvm::StringRef arch);

}  // namespace gptc
