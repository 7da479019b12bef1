// Kernel IR to CUDA C++: flat text, one __global__ function per top-level statement, which must be a grid loop.
//
// The text stands on a small device layer of named functions, which it includes as "gptc_device.h": memory accesses,
// shuffles, the barrier, conversions, correctly rounded arithmetic. cudaDeviceLayer() is that header for NVRTC; tests
// put a host version in its place that watches every access (tests/simt).
//
//   - A block has as many threads as its widest block_thread loop, rounded up to whole warps. A barrier precedes a part
//     of a block that may access memory written since the last barrier, or write memory read since then. Barriers also
//     separate the iterations of a serial loop. Parameters of equal size count as one buffer: they may share memory.
//   - Every warp computes an HReduce of a shared buffer itself: lanes fold elements 32 apart first, then shuffle. That
//     is the order that kir prescribes, and all lanes get the same bits.
//   - Vector loops are expanded. Contiguous accesses of a whole group become one vector access if the index is a
//     multiple of the width. So parameters must be aligned to 16 bytes.
//   - Pairs of bf16 (kir::pair, kir::dot) are for CPUs only; the emitter rejects them.
//   - A kernel first waits for the one before it, and lets the next one start when its own work is done: a launch may
//     overlap the end of the kernel in front (programmatic dependent launch; runtime/cuda/together.h).
//   - Indices are 32 bits wide if they provably fit, else 64.
#pragma once

#include "ir/kernel/kernel.h"

#include "llvm/ADT/ArrayRef.h"

#include <string>
#include <vector>

namespace gptc {

struct CudaPhase {
  std::string symbol;
  int64_t blocks;  // below 2^31
  int threads;     // per block, a multiple of 32
  /// Bytes of dynamic shared memory that the launch must give; 0 if the kernel declares its own (up to 48 KiB). The
  /// launcher must set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES to at least as much.
  int64_t sharedBytes;
};

struct CudaKernel {
  std::string text;
  std::vector<CudaPhase> phases;  // launched in order; each starts after the one before has ended
};

/// Emits functions SYMBOL_p0, SYMBOL_p1, ...; each takes all of Kernel::params. Names in the kernel affect only the
/// names of variables in the text. InternalError for a kernel that breaks the rules above.
CudaKernel emitCuda(const kir::Kernel &k, const std::string &symbol);

/// Functions for the blocks of several kernels, to be called by one __global__ function (launch.h).
struct CudaParts {
  std::string text;
  /// By kernel: the function of each phase, which takes Kernel::params and the block's number. All functions of one
  /// phase are for blocks of equally many threads, those of the widest; all shared memory comes from the launch.
  std::vector<std::vector<CudaPhase>> phases;
};

/// Emits functions SYMBOL_p0_k0, SYMBOL_p0_k1, ..., SYMBOL_p1_k0, ...
CudaParts emitCudaParts(llvm::ArrayRef<const kir::Kernel *> kernels, const std::string &symbol);

}  // namespace gptc
