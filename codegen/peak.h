// What the machine can do at best, measured: the denominator of MFU.
#pragma once

#include "codegen/thread_pool.h"
#include "ir/schedule.h"

namespace gptc {

/// fp32 FLOP/s of all threads of the pool together: independent chains of vector FMAs in registers, no memory; the best
/// of several runs, about 50 ms in all. Counts an FMA as two.
double measurePeakFlops(ThreadPool &pool, const Target &target);

}  // namespace gptc
