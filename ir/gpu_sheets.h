// Figures from the data sheets of GPUs: peak rates of dense products with sums in f32, memory and its bandwidth,
// caches. The cost model and the checks of cluster files use them.
#pragma once

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

#include <vector>

namespace gptc {

/// The first architecture whose tensor cores multiply f8e4m3, at twice the rate of f16 by all data sheets.
constexpr unsigned eightsFrom = 89;
/// Whether the tensor cores of "sm_90a" and the like do.
bool multipliesEights(llvm::StringRef arch);

struct GpuSheet {
  llvm::StringRef name;     // words that all occur in the names of these GPUs
  llvm::StringRef arch;     // "sm_90": without a trailing letter
  double fp32, tf32, half;  // TFLOP/s; `half`: fp16 and bf16. All dense: without structured sparsity.
  double dram;              // GB/s
  double l2;                // MiB
  double memory;            // GB, of 10^9 bytes; real GPUs have slightly more
  int sms;                  // streaming multiprocessors

  /// Lanes of an SM that multiply f32: 64 on sm_75 and sm_80, else 128.
  int fp32Lanes() const;
  /// Cycles per second behind the figure of fp32.
  double clock() const { return 1e12 * fp32 / (2.0 * fp32Lanes() * sms); }
};

llvm::ArrayRef<GpuSheet> gpuSheets();

/// Finds a GPU by the name that the driver reports ("NVIDIA H100 80GB HBM3") or people write ("H100-SXM5"). Null if the
/// name is unknown, or names a MIG slice, a mobile version or another variant with different figures.
const GpuSheet *gpuSheet(llvm::StringRef name);

/// The GPU of exactly this architecture ("sm_90a" counts as "sm_90") with the least memory; null if none is known.
const GpuSheet *leastMemory(llvm::StringRef arch);

/// The first GPU in the table of this architecture ("sm_90a"), the largest for training; or of the nearest earlier one.
const GpuSheet &largestGpu(llvm::StringRef arch);

}  // namespace gptc
