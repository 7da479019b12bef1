// What the machine can do at best, measured: the denominator of MFU.
#pragma once

#include "codegen/thread_pool.h"
#include "ir/schedule.h"

namespace gptc {

/// FLOP/s of all threads of the pool together: independent chains of vector FMAs in registers, no memory; the best of
/// several runs, about 50 ms in all. Counts an FMA as two. With operands in bf16, dot products of pairs where the CPU
/// has them (four each); else they are converted, and the peak is that of f32.
double measurePeakFlops(ThreadPool &pool, const Target &target, DType operands = DType::f32);

}  // namespace gptc
