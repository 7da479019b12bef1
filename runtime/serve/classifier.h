// Labels of texts, by the functions @embed_N and @labels of a plan (frontends/model_builder.h).
#pragma once

#include "runtime/serve/embedder.h"

namespace gptc {

/// On CPUs a text has the same bits alone and among any others, as its vector has.
class Classifier {
public:
  /// `pooling`: which vector of a text @labels reads. Throws UserError(PlanDamaged) if the plan lacks one of the
  /// functions.
  Classifier(Executor &executor, Pooling pooling);
  /// Compiles for texts of any length.
  void prepare();

  int64_t labels() const { return count; }
  /// The longest text in tokens.
  int64_t context() const { return embedder.context(); }

  /// The labels() logits of each text or pair of texts, which has 1 to context() tokens, with `types` as
  /// Embedder::embed takes them. Throws UserErrors TokenOutOfRange, and NonFinite if one is not finite.
  std::vector<std::vector<float>> logits(llvm::ArrayRef<std::vector<int32_t>> texts,
                                         llvm::ArrayRef<std::vector<int32_t>> types);

private:
  Executor &executor;
  Embedder embedder;
  const Pooling pooling;
  int64_t rows = 0, count = 0, stride = 0;  // of a call and its result
};

}  // namespace gptc
