// What kernels are measured and compared on: random operands of a fused op.
#pragma once

#include "ir/graph.h"
#include "support/thread_pool.h"

namespace gptc {

/// Fills the memory of operand `i`: numbers in [-1, 1), rounded to its dtype; indices that are within their table. The
/// same bits each time, whatever the number of threads. `whole`: whole numbers from -2 to 2, of which sums of products
/// are exact in whatever order and by whatever instruction they are added, up to four million of them.
void fillOperand(const Op &fused, unsigned i, void *to, ThreadPool &pool, bool whole = false);

}  // namespace gptc
