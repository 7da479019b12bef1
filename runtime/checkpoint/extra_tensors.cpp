#include "runtime/checkpoint/extra_tensors.h"

#include "runtime/checkpoint/state_tensors.h"

#include "llvm/ADT/STLExtras.h"

namespace gptc {

/// What files call a part of the head of tokens in each family, with or without what names of a whole model begin with.
/// A file may hold it although it is tied, or under two names.
static bool isHeadOfTokens(llvm::StringRef name, llvm::StringRef part) {
  return name.consume_back(part) &&
         llvm::is_contained({"lm_head.", "embed_out.", "decoder.", "cls.predictions.decoder.", "cls.predictions."},
                            withoutBase(name));
}

bool isBesideModel(llvm::StringRef name, const std::vector<int64_t> &shape, bool headless) {
  const bool mask = name.ends_with(".attn.bias") || name.ends_with(".attention.bias");
  return name.ends_with(".masked_bias") || name.ends_with("rotary_emb.inv_freq") ||
         name.ends_with("embeddings.position_ids") || (mask && shape.size() == 4) || name.contains("pooler.dense.") ||
         name.starts_with("cls.seq_relationship.") ||
         (headless &&
          (name.starts_with("cls.predictions.") || name.starts_with("lm_head.") || name.starts_with("embed_out.") ||
           name.starts_with("head.") || name.starts_with("decoder.") || name.starts_with("classifier.") ||
           isHeadOfTokens(name, "weight") || isHeadOfTokens(name, "bias")));
}

void TensorsOfHead::take(llvm::StringRef parameter, const std::vector<const TensorInfo *> &found) {
  if (parameter == "wte.weight" || parameter == "lm_head.weight")
    weights.insert(weights.end(), found.begin(), found.end());
  else if (parameter == "lm_head.bias")
    biases.insert(biases.end(), found.begin(), found.end());
}

bool TensorsOfHead::areRepeatedBy(const TensorFiles &file, const TensorInfo &t) const {
  const auto *const read = isHeadOfTokens(t.name, "weight") ? &weights
                           : isHeadOfTokens(t.name, "bias") ? &biases
                                                            : nullptr;
  return read && llvm::any_of(*read, [&](const TensorInfo *k) {
           return k->dtype == t.dtype && k->shape == t.shape && file.areEqual(t, *k);
         });
}

}  // namespace gptc
