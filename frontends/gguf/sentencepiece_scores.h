// A BPE of characters as llama.cpp has it: tokenizer.ggml.model = "llama", where two neighbours merge if their
// concatenation is a token, that of the highest score first.
#pragma once

#include "frontends/tokenizer/gguf_vocabulary.h"
#include "support/json.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gptc {

/// What stands before the first character of a text.
enum class FirstSpace {
  none,
  always,       // a space, and before each text between tokens: what llama.cpp's add_space_prefix does
  unlessThere,  // a space where the text has none of its own
};

/// How a tokenizer.json that does nothing else to a text than writing its spaces as U+2581 begins it; nullopt for every
/// other one.
std::optional<FirstSpace> firstSpaceOf(const nlohmann::json &tokenizer);

/// Left and right part of each merge, by rank.
using PieceMerges = std::vector<std::pair<std::string, std::string>>;

/// Fills `v.scores`, of which gptc's reader of such vocabularies makes the same merges again; tokens, types and special
/// ids are there. Only the order of the merges that make one token is not kept: SentencePiece and llama.cpp take the
/// leftmost. Returns what no scores can say, as words behind "it has"; "" if they do. `file` is for messages. Throws
/// UserError(DataInvalid) for tokens that are there twice.
std::string scoreByMerges(GgufVocabulary &v, const PieceMerges &merges, const std::string &file);

}  // namespace gptc
