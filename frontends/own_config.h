// config.json of a model that no family of transformers holds: model_type "gptc", the keys of [model] under their own
// names, and the keys that no family holds. Only gptc reads it.
#pragma once

#include "frontends/hf_families.h"
#include "support/diagnostics.h"
#include "support/json.h"

namespace gptc {

constexpr const char *kOwnModelType = "gptc", *kNoFamilyHolds = "no_family_holds";

/// The keys of [model] that determine what is computed, with their values: {"n_layer": 12, "norm": "layernorm", ...}.
nlohmann::ordered_json modelValues(const ModelConfig &model);

/// Writes bos_token_id, eos_token_id (a list if there are several) and pad_token_id into `config`; null for none.
void writeTokens(const HfTokens &tokens, nlohmann::ordered_json &config);

/// The text of the file. `differing`: HfDescription::differing.
std::string ownConfig(const ModelConfig &model, const std::string &dtype, const HfTokens &tokens,
                      const std::vector<std::string> &differing);

/// Compares such a file's content with a complete [model]. A key that it lacks has its default. Diagnostics have no
/// location; each names the key and both values.
std::vector<Diagnostic> compareOwnConfig(const std::string &file, const nlohmann::json &config,
                                         const ModelConfig &model);

}  // namespace gptc
