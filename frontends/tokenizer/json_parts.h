// Parts of a tokenizer.json, as `tokenizers` of Hugging Face writes them, for all that write such files.
#pragma once

#include "frontends/tokenizer/added_tokens.h"
#include "frontends/tokenizer/tokenizer.h"
#include "support/json.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <string>
#include <vector>

namespace gptc {

/// An entry of `added_tokens`.
nlohmann::ordered_json addedTokenJson(const AddedToken &token);

/// `post_processor`: what is put around a text, and around a pair, whose second text has type 1 and no tokens of its
/// own. Null if nothing is. `nameOf`: a token's text.
nlohmann::ordered_json postProcessorJson(const std::vector<SequencePart> &single,
                                         llvm::function_ref<std::string(int32_t)> nameOf);

}  // namespace gptc
