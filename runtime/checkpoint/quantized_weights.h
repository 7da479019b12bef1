// Parameters that an executor has in 8 or 4 bits (ir/quantized.h).
#pragma once

#include "ir/graph.h"
#include "ir/quantized.h"
#include "support/gguf/blocks.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace gptc {

class Executor;

/// A parameter and the states of kind `quantized` that are of it.
struct QuantizedWeight {
  const State *param = nullptr, *numbers = nullptr, *scales = nullptr;
  const State *supers = nullptr;  // of q4_k, else null
  QuantFormat format = QuantFormat::q8_0;
  bool tb = false;  // [N,K]

  int64_t rows() const;     // K, what a block goes along
  int64_t columns() const;  // N
};

/// ggml's format of the same name.
GgmlType ggmlTypeOf(QuantFormat format);

/// Those of a module, which must outlive this.
class QuantizedWeights {
public:
  explicit QuantizedWeights(const Module &m);
  /// Null if the parameter is in no few bits.
  const QuantizedWeight *of(const State &param) const;
  /// By the names of the parameters.
  const std::map<std::string, QuantizedWeight> &byName() const { return all; }

private:
  std::map<std::string, QuantizedWeight> all;
};

/// Fills them from the parameter's values, row-major over its padded extents: as support/gguf/blocks.h rounds to the
/// format. Values that were read of Q8_0 or Q4_0 become the same numbers again. Also fills the parameter itself, if it
/// has memory. Throws UserErrors NonFinite, and OutOfRange for a block whose scale would be beyond f16.
void storeQuantized(Executor &executor, const QuantizedWeight &w, const float *values);

/// Gives ggml's blocks of all elements of a column, in the weight's format. Called by many threads at once.
using BlocksOfColumn = std::function<void(int64_t column, uint8_t *blocks)>;
/// Fills them from blocks as they are, but not the parameter itself. Throws UserError(NonFinite) for a scale that is
/// not finite, and what `blocksOf` throws.
void storeBlocks(Executor &executor, const QuantizedWeight &w, const BlocksOfColumn &blocksOf);

/// ggml's blocks of `n` values in the weight's format. Throws storeQuantized's errors.
void roundToBlocks(const QuantizedWeight &w, const float *values, int64_t n, uint8_t *blocks);

/// The difference between what the executor has of a weight and the parameter's values, row-major over its padded
/// extents: the root of the sum of its squares over that of theirs; 0 if all values are 0.
double roundingErrorOf(Executor &executor, const QuantizedWeight &w, const float *values);

}  // namespace gptc
