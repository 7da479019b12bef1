// How a Hugging Face folder has texts cut and typed: tokenizer_config.json, and the truncation of tokenizer.json.
#pragma once

#include "frontends/tokenizer/typed_text.h"

#include <string>

namespace gptc {

/// What transformers' AutoTokenizer does with truncation=True: `most` by model_max_length, `cutsBeginnings` by
/// truncation_side, `hasTypes` by model_input_names, without which all tokenizers give types. A folder without these
/// files says nothing. Throws UserError(CheckpointDamaged) for files that are no such description.
TextForm readHfTextForm(const std::string &dir);
/// That of the folder in which a tokenizer's file lies.
TextForm textFormBeside(const std::string &tokenizer);

}  // namespace gptc
