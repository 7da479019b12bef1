// Compares config.json, which describes the weights of a model of Hugging Face's transformers, with [model]. Tensor
// shapes do not suffice: another number of heads, rotation base or epsilon loads without an error and computes another
// function. So every key that can change a logit is compared; a key that no table here names is refused, because it may
// be such a key.
#pragma once

#include "frontends/toml_config.h"

namespace gptc {

struct HfComparison {
  std::string file;
  bool found = false;  // false: it does not exist, or lies in a checkpoint, which says more; nothing was compared
  /// Diagnostics without a location. Each names the file's key and both values.
  std::vector<Diagnostic> differences;
};

/// Compares the config.json in the folder `weights`, or beside the file `weights`, with a complete [model]. It may be
/// gptc's own form (frontends/own_config.h).
HfComparison compareHfConfig(const std::string &weights, const ModelConfig &model);

}  // namespace gptc
