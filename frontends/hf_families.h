// The families of Hugging Face's transformers: what a config.json beside weights says of [model], which family holds a
// model, and the config.json that describes it there. A family is named by its model_type; frontends/hf/family.h has
// their tables.
//
// Shapes of tensors do not suffice to take weights: another number of heads, base of rotations or epsilon loads without
// an error and computes another function. So every key that can change a logit is read or compared, and a key that no
// table names is refused.
#pragma once

#include "ir/settings/settings.h"
#include "support/diagnostics.h"

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

/// `dtype`: of the weights beside it, as PyTorch calls it: "float32". `labels`: the names of model.labels; none:
/// LABEL_0, LABEL_1, ...
HfDescription describeForHf(const ModelConfig &model, const std::string &dtype, const HfTokens &tokens,
                            const std::vector<std::string> &labels = {});

/// The [model] that the config.json in folder `dir` describes: sizes as they are there, and block_size as the number of
/// its positions, or what [model] takes at most; `context` gets that number. Throws UserError with every problem:
/// FileMissing, CheckpointDamaged, MissingKey, UnknownKey, WrongType, OutOfRange, ShapeMismatch, Contradiction,
/// NotBuiltYet.
ModelConfig readHfConfig(const std::string &dir, int64_t *context = nullptr);
/// The same of the text of a config.json; `file` is for messages.
ModelConfig readHfConfigText(const std::string &text, const std::string &file, int64_t *context = nullptr);

struct HfComparison {
  std::string file;
  bool found = false;  // false: it does not exist, or lies in a checkpoint, which says more; nothing was compared
  /// Diagnostics without a location. Each names the file's key and both values.
  std::vector<Diagnostic> differences;
};

/// Compares the config.json in the folder `weights`, or beside the file `weights`, with a complete [model]. It may be
/// gptc's own form (frontends/own_config.h). The model's context may be shorter than what config.json says.
HfComparison compareHfConfig(const std::string &weights, const ModelConfig &model);

}  // namespace gptc
