// What an encoder reads of a text or of a pair of texts: its tokens, cut to a length, and their types, as transformers'
// tokenizers make them of (text, text_pair) with truncation=True.
#pragma once

#include "frontends/tokenizer/tokenizer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// How texts are read.
struct TextForm {
  int64_t most = 0;             // tokens with those around, to which longer texts are cut; 0: not said
  bool cutsBeginnings = false;  // else ends
  bool hasTypes = true;         // false: all types are 0
  std::string prompt;           // stands before each text, before the first of a pair
  bool parseSpecial = false;    // control tokens in a text become their tokens
  std::string mask;             // stands in a text for maskToken, which the tokenizer does not make of it; "": nothing
  int32_t maskToken = -1;
};

struct TypedText {
  std::vector<int32_t> tokens, types;  // a type for each token
  bool isCut = false;
};

/// Reads a text, or a pair of texts if `pair` is neither missing nor empty. Of a pair the longer text is cut first
/// (longest_first). Requires form.most > 0. Throws what Tokenizer::encode throws, UserError(Usage) if a text must be
/// cut and form.most leaves no room for it, and NotBuiltYet for a pair if the tokenizer's file does not say how one is
/// read.
TypedText typedText(const Tokenizer &tokenizer, const std::string &text, const std::optional<std::string> &pair,
                    const TextForm &form);

}  // namespace gptc
