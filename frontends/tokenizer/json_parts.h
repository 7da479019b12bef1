// Parts of a tokenizer.json, as `tokenizers` of Hugging Face writes them, for all that write such files.
#pragma once

#include "frontends/tokenizer/added_tokens.h"
#include "frontends/tokenizer/tokenizer.h"
#include "support/json.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <string>
#include <vector>

namespace gptc {

/// The text of the token that a tokenizer_config.json names by `role` ("eos_token"), as text or as an object with
/// `content`; null if it names none.
template <class Json> const std::string *tokenOfRole(const Json &config, const char *role) {
  const Json &said = part(config, role);
  const Json &text = said.is_object() ? part(said, "content") : said;
  return text.template get_ptr<const std::string *>();
}

/// An entry of `added_tokens`.
nlohmann::ordered_json addedTokenJson(const AddedToken &token);

/// `post_processor`: what is put around a text, and around a pair, whose second text has type 1 and no tokens of its
/// own. Null if nothing is. `nameOf`: a token's text.
nlohmann::ordered_json postProcessorJson(const std::vector<SequencePart> &single,
                                         llvm::function_ref<std::string(int32_t)> nameOf);

}  // namespace gptc
