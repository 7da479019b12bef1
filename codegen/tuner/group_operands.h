// Random operands of a fused op, on which kernels are measured and compared.
#pragma once

#include "ir/graph.h"
#include "support/thread_pool.h"

namespace gptc {

/// Fills the memory of operand `i`. Floats get numbers in [-1, 1), rounded to the dtype; integers get indices within
/// the extent that they index, other dtypes zeros. The bits do not depend on the number of threads. `whole`: floats get
/// integers from -2 to 2, whose sums of up to four million products are exact in any order and with any instruction.
void fillOperand(const Op &fused, unsigned i, void *to, ThreadPool &pool, bool whole = false);

}  // namespace gptc
