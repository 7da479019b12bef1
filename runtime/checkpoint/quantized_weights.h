// Parameters that an executor has in 8 or 4 bits (ir/quantized.h).
#pragma once

#include "ir/graph.h"

#include <cstdint>
#include <map>
#include <string>

namespace gptc {

class Executor;

/// A parameter and the states of kind `quantized` that are of it.
struct QuantizedWeight {
  const State *param = nullptr, *numbers = nullptr, *scales = nullptr;
  int64_t bits = 0;
};

/// Those of a module, which must outlive this.
class QuantizedWeights {
public:
  explicit QuantizedWeights(const Module &m);
  /// Null if the parameter is in no few bits.
  const QuantizedWeight *of(const State &param) const;

private:
  std::map<std::string, QuantizedWeight> all;  // by parameter
};

/// Fills them from the parameter's values, row-major over its padded extents: as ggml rounds to Q8_0 and Q4_0.
/// Values that were read of such a format become the same numbers again. Also fills the parameter itself, if it has
/// memory. Throws UserError(OutOfRange) for a block whose scale would be beyond f16.
void storeQuantized(Executor &executor, const QuantizedWeight &w, const float *values);

}  // namespace gptc
