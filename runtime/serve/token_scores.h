// Log-probabilities of tokens.
#pragma once

#include "llvm/ADT/ArrayRef.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace gptc {

/// A token and the natural logarithm of its probability, which is the softmax of the logits as the model gives them:
/// temperature and what else guides a choice do not matter.
struct TokenScores {
  int32_t id = 0;
  float logProbability = 0;
  /// The likeliest tokens, falling; of equal ones the smaller id first. If `id` is not among them, it is added last.
  std::vector<std::pair<int32_t, float>> top;
};

/// Of token `id`, with the `count` likeliest. Sums in double in the order of ids; a logit that is NaN counts as minus
/// infinity.
TokenScores scoresOf(llvm::ArrayRef<float> logits, int32_t id, int64_t count);

}  // namespace gptc
