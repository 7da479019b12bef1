// The arguments of @train_step, @accumulate and @eval that hold sequences.
#pragma once

#include "ir/graph.h"
#include "runtime/data/training_data.h"

namespace gptc {

class SequenceBatch {
public:
  /// For the sequences of a function whose first arguments are %x, %y (floats: of a regression) and, of a model with
  /// labels, %documents and %types.
  explicit SequenceBatch(const Function &f);

  int64_t size() const { return B; }
  int64_t tokens() const { return T; }
  /// Where sequence b stands.
  SequenceRow row(int64_t b);
  /// Pointers to the arguments, which stay where they are, and then to `more`.
  std::vector<const void *> args(std::initializer_list<const void *> more = {}) const;

private:
  int64_t B, T, perRow;  // perRow: targets of a sequence
  std::vector<int32_t> x, y, types;
  std::vector<float> numbers;  // in place of y
  std::vector<int64_t> documents;
};

}  // namespace gptc
