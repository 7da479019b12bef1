// The vocabulary of a GGUF file, made from a tokenizer.json.
#pragma once

#include "frontends/tokenizer/gguf_vocabulary.h"

#include <cstdint>
#include <string>

namespace gptc {

/// The vocabulary of a tokenizer.json for a model of `vocabSize` tokens: ids without a token become unused tokens. Only
/// byte-level BPE with a splitting that llama.cpp has, by its name: GPT-2's, SmolLM's, Llama 3's and Qwen2's. From the
/// files beside it, if they exist: special tokens, add_bos_token and the chat template out of tokenizer_config.json
/// and chat_template.jinja, all end tokens out of generation_config.json; else <|endoftext|> begins and ends a text.
/// Throws UserErrors FileMissing, DataInvalid, ShapeMismatch (more tokens than vocabSize), and NotBuiltYet for any
/// other tokenizer.
GgufVocabulary vocabularyOf(const std::string &tokenizerJson, int64_t vocabSize);

}  // namespace gptc
