// The vocabulary of a GGUF file, made from a tokenizer.json.
#pragma once

#include "frontends/tokenizer/gguf_vocabulary.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gptc {

/// The vocabulary of a tokenizer.json for a model of `vocabSize` tokens: ids without a token become unused tokens.
/// Either byte-level BPE with a splitting that llama.cpp has, by its name: GPT-2's, SmolLM's, Llama 3's and Qwen2's; or
/// the BPE of characters that SentencePiece's models are, with bytes for others (byte_fallback), of whose merges scores
/// are made. `texts`: of tokenizer.json, and of files beside it, by name, if there are any: special tokens,
/// add_bos_token and the chat template out of tokenizer_config.json and chat_template.jinja, all end tokens out of
/// generation_config.json; else <|endoftext|> begins and ends a text. `file` names tokenizer.json in messages. Throws
/// UserErrors DataInvalid, ShapeMismatch (more tokens than vocabSize), and NotBuiltYet for any other tokenizer, with
/// which llama.cpp would give other ids for a text. `notes`: gets what differs for control tokens that a text names,
/// and for the space before a text.
GgufVocabulary vocabularyOf(const std::map<std::string, std::string> &texts, const std::string &file, int64_t vocabSize,
                            std::vector<std::string> *notes = nullptr);

}  // namespace gptc
