// Parameters that an executor has in 8 or 4 bits (ir/quantized.h).
#pragma once

#include "ir/graph.h"

#include <optional>

namespace gptc {

class Executor;

/// The states of kind `quantized` that are of one parameter.
struct QuantizedWeight {
  const State *param, *numbers, *scales;
  int64_t bits = 0;
};
std::optional<QuantizedWeight> quantizedOf(const Module &m, const State &param);

/// Fills them from the parameter's values, row-major over its padded extents: as ggml rounds to Q8_0 and Q4_0.
/// Values that were read of such a format become the same numbers again. Also fills the parameter itself, if it has
/// memory. Throws UserError(OutOfRange) for a block whose scale would be beyond f16.
void storeQuantized(Executor &executor, const QuantizedWeight &w, const float *values);

}  // namespace gptc
