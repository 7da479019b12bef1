// config.json: what stands beside the weights of a model of Hugging Face's transformers and says what their numbers
// mean. The shapes of tensors tell little of it: other heads, another base of the rotations or another epsilon load
// without a word and compute another function. So every key that can change a logit is compared with [model]; one that
// no table here names is refused, as it may be such a key.
#pragma once

#include "frontends/toml_config.h"

namespace gptc {

struct HfComparison {
  std::string file;
  bool found = false;  // false: there is no such file, and nothing was compared
  /// Without a place. Each names their key and both values.
  std::vector<Diagnostic> differences;
};

/// The config.json in the folder `weights`, or beside the file `weights`, against a complete [model].
HfComparison compareHfConfig(const std::string &weights, const ModelConfig &model);

}  // namespace gptc
