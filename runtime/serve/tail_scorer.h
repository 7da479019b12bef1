// Log-probabilities of how sequences end.
#pragma once

#include "runtime/serve/cached_model.h"

#include <vector>

namespace gptc {

/// Scores one sequence after the other in the first slot of a model. What a sequence shares with the one before it is
/// not read again.
class TailScorer {
public:
  explicit TailScorer(Executor &executor) : executor(executor), model(executor) {}

  /// Tokens of the longest sequence: what follows the last of them is not asked.
  int64_t most() const { return model.context() + 1; }
  /// Natural logarithms of the probabilities of the last `count` tokens, each after those before it: the same bits as
  /// of a prompt's scores (Generation::onPrompt) where the model has one order of sums, whatever was scored before.
  /// 1 <= count < tokens.size() <= most(). Throws UserError(NonFinite) if a logit of any token is not finite there.
  std::vector<float> score(llvm::ArrayRef<int32_t> tokens, int64_t count);

private:
  Executor &executor;
  CachedModel model;
  std::vector<int32_t> held;  // tokens in the slot
};

}  // namespace gptc
