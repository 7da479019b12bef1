// The special tokens that the configurations beside weights name.
#pragma once

#include "frontends/hf_families.h"

#include <cstdint>
#include <string>

namespace gptc {

/// eos_token_id, bos_token_id and pad_token_id as generation_config.json in the folder says them, each of them else as
/// config.json does, without those that the vocabulary of `vocabSize` tokens has not. Throws UserError(DataInvalid)
/// with the file, the key and its value for what is no token.
HfTokens readHfTokens(const std::string &folder, int64_t vocabSize);

/// The folder of the weights that model.init_from names: "hf:DIR", or "hf:DIR/model.safetensors"; "" for any other.
std::string folderOfWeights(const std::string &initFrom);

}  // namespace gptc
