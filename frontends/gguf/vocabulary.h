// The vocabulary of a GGUF file: its keys tokenizer.ggml.*, read as they stand and written from a tokenizer.json.
#pragma once

#include "frontends/tokenizer/gguf_vocabulary.h"
#include "support/gguf/gguf_file.h"
#include "support/gguf/gguf_writer.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// The vocabulary of a file; nullopt if it has none. Throws UserError(CheckpointDamaged) for numbers of tokens that the
/// vocabulary lacks, lists of other lengths, unknown types, and more than 2^24 tokens.
std::optional<GgufVocabulary> readVocabulary(const GgufFile &file);

/// The vocabulary of a tokenizer.json for a model of `vocabSize` tokens: ids without a token become unused tokens. Only
/// byte-level BPE with a splitting that llama.cpp has, by its name: GPT-2's, SmolLM's, Llama 3's and Qwen2's. `texts`:
/// of tokenizer.json, and of files beside it, by name, if there are any: special tokens, add_bos_token and the chat
/// template out of tokenizer_config.json and chat_template.jinja, all end tokens out of generation_config.json; else
/// <|endoftext|> begins and ends a text. `folder` is for messages. Throws UserErrors DataInvalid, ShapeMismatch (more
/// tokens than vocabSize), and NotBuiltYet for any other tokenizer.
GgufVocabulary vocabularyOf(const std::map<std::string, std::string> &texts, const std::string &folder,
                            int64_t vocabSize);

/// Appends the keys of a vocabulary; of null, those that say that there is none.
void addVocabulary(GgufKeys &keys, const GgufVocabulary *vocabulary);

}  // namespace gptc
