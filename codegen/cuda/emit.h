// Kernel IR to CUDA C++: flat text, one __global__ function per top-level statement, which must be a grid loop.
//
// The text stands on a small device layer of named functions, which it includes as "gptc_device.h": memory accesses,
// shuffles, the barrier, conversions, correctly rounded arithmetic. cudaDeviceLayer() is that header for NVRTC; tests
// put a host version in its place that watches every access (tests/simt).
//
//   - A block has as many threads as its widest block_thread loop, in whole warps. A barrier stands where one part of a
//     block may touch what another has touched since the last, and around the rounds of a serial loop; parameters may
//     share memory where their sizes are equal.
//   - An HReduce of a shared buffer is done by every warp: lanes fold elements 32 apart first, then shuffle. That is
//     the order that kir asks for, and all lanes get the same bits.
//   - Vector loops are expanded. Contiguous accesses of a whole group become one vector access where the index is a
//     multiple of the width; so parameters must be aligned to 16 bytes.
//   - Pairs of bf16 are the CPU's; there is no text for them.
//   - Indices are 32 bits wide where they provably fit, else 64.
#pragma once

#include "ir/kernel/kernel.h"

#include <string>
#include <vector>

namespace gptc {

struct CudaPhase {
  std::string symbol;
  int64_t blocks;  // below 2^31
  int threads;     // per block, a multiple of 32
  /// Bytes of shared memory that the launch must give, 0 where the kernel declares its own (up to 48 KiB). The function
  /// must be allowed as much (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES).
  int64_t sharedBytes;
};

struct CudaKernel {
  std::string text;
  std::vector<CudaPhase> phases;  // in order, each after the one before has ended
};

/// Functions SYMBOL_p0, SYMBOL_p1, ...; each takes all of Kernel::params. The text depends on names in the kernel only
/// in how its variables are called. InternalError for a kernel that breaks the rules above.
CudaKernel emitCuda(const kir::Kernel &k, const std::string &symbol);

}  // namespace gptc
