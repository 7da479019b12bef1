// The vocabulary of a GGUF file: its keys tokenizer.ggml.*, read as they stand and written from a tokenizer.json.
#pragma once

#include "support/gguf/gguf_file.h"
#include "support/gguf/gguf_writer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct GgufVocabulary {
  /// What each token is, by llama.cpp's numbers.
  enum TokenType : int32_t { normal = 1, unknown = 2, control = 3, userDefined = 4, unused = 5, byte = 6 };

  std::string
      model;  // "gpt2": byte-level BPE; "llama": SentencePiece with byte fallback; "t5": Unigram; "bert": WordPiece
  std::string pre;  // names the splitting before BPE: "gpt-2", "llama-bpe", ...; "" if the file names none
  std::vector<std::string> tokens;  // as written in the file; for "gpt2" bytes are GPT-2's printable characters
  std::vector<float> scores;        // empty, or one for each token
  std::vector<int32_t> types;       // one for each token; TokenType
  std::vector<std::string> merges;  // "left right", by rank
  int64_t bos = -1, eos = -1, eot = -1, unk = -1, pad = -1;  // -1: the file names none
  /// What llama.cpp does if the file does not say it: "llama" begins with bos and a space, "bert" and "t5" differ too.
  bool addBos = false, addEos = false, addSpacePrefix = false;
  std::string chatTemplate;  // "": none
};

/// The vocabulary of a file; nullopt if it has none. Throws UserError(CheckpointDamaged) for numbers of tokens that the
/// vocabulary lacks, lists of other lengths, unknown types, and more than 2^24 tokens.
std::optional<GgufVocabulary> readVocabulary(const GgufFile &file);

/// The vocabulary of a tokenizer.json for a model of `vocabSize` tokens: ids without a token become unused tokens. Only
/// byte-level BPE with a splitting that llama.cpp has, by its name: GPT-2's, SmolLM's, Llama 3's and Qwen2's. From the
/// files beside it, if they exist: special tokens, add_bos_token and the chat template out of tokenizer_config.json
/// and chat_template.jinja, all end tokens out of generation_config.json; else <|endoftext|> begins and ends a text.
/// Throws UserErrors FileMissing, DataInvalid, ShapeMismatch (more tokens than vocabSize), and NotBuiltYet for any
/// other tokenizer.
GgufVocabulary vocabularyOf(const std::string &tokenizerJson, int64_t vocabSize);

/// Appends the keys of a vocabulary; of null, those that say that there is none.
void addVocabulary(GgufKeys &keys, const GgufVocabulary *vocabulary);

}  // namespace gptc
