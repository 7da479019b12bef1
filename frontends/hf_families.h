// The families of Hugging Face's transformers: which of them holds a model, and the config.json that describes it
// there. A family is named by its model_type.
#pragma once

#include "ir/settings/settings.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// The special tokens of a model.
struct HfTokens {
  std::optional<int64_t> bos;
  std::vector<int64_t> eos;  // all that end a text; the tokenizer's own first
  std::optional<int64_t> pad;
  bool operator==(const HfTokens &) const = default;
};

struct HfDescription {
  std::string family;  // its model_type; "" if no family holds the model
  /// If there is none: the keys of [model] that differ from the nearest family.
  std::vector<std::string> differing;
  /// The text of config.json, in the spellings of transformers 4 and 5; for a model without a family gptc's own form
  /// (frontends/own_config.h).
  std::string config;
};

/// `dtype`: of the weights beside it, as PyTorch calls it: "float32".
HfDescription describeForHf(const ModelConfig &model, const std::string &dtype, const HfTokens &tokens);

}  // namespace gptc
