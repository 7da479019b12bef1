// Tokens in place of masks, by the functions @embed_N and @fill of a plan (frontends/model_builder.h).
#pragma once

#include "runtime/serve/embedder.h"

namespace gptc {

/// On CPUs a text has the same bits alone and among any others, as its vectors have.
class MaskFiller {
public:
  /// Throws UserError(PlanDamaged) if the plan lacks one of the functions.
  explicit MaskFiller(Executor &executor);

  /// The tokens of the model, and the longest text in tokens.
  int64_t vocabulary() const { return count; }
  int64_t context() const { return embedder.context(); }

  /// Takes the logits of all tokens in place `number` of those of text `text`, which are valid during the call.
  using Take = llvm::function_ref<void(size_t text, size_t number, llvm::ArrayRef<float> logits)>;
  /// Gives `take` each of the `places` of each text, which has 1 to context() tokens, in order. `types`: as
  /// Embedder::embed takes them. Throws UserErrors TokenOutOfRange, and NonFinite if a logit is not finite.
  void fill(llvm::ArrayRef<std::vector<int32_t>> texts, llvm::ArrayRef<std::vector<int32_t>> types,
            llvm::ArrayRef<std::vector<int64_t>> places, Take take);

private:
  Executor &executor;
  Embedder embedder;
  int64_t rows = 0, count = 0, stride = 0;  // of a call and its result
};

}  // namespace gptc
