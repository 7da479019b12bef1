// The vocabulary of a GGUF file: its keys tokenizer.ggml.*, as they stand. Tokenizer::fromGguf makes a tokenizer of it.
#pragma once

#include "support/gguf/gguf_writer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

class GgufFile;

struct GgufVocabulary {
  /// What each token is, by llama.cpp's numbers.
  enum TokenType : int32_t { normal = 1, unknownToken = 2, control = 3, userDefined = 4, unused = 5, byte = 6 };

  /// "gpt2": BPE over bytes, with `merges` and `pre`; "llama": SentencePiece's BPE, with `scores`. Tokenizer::fromGguf
  /// refuses others, as "bert" and "t5".
  std::string model;
  std::string pre;  // how a text is cut into words: "gpt-2", "llama-bpe", ...; "" if the file names none
  std::vector<std::string> tokens;  // as written there: with GPT-2's printable characters, or U+2581 for spaces
  std::vector<float> scores;        // empty, or one for each token
  std::vector<int32_t> types;       // TokenType of each token; empty: all normal
  std::vector<std::string> merges;  // "LEFT RIGHT", by rank
  int64_t bos = -1, eos = -1, eot = -1, unknown = -1, pad = -1;  // ids; -1: none
  bool addBos = false, addEos = false;                           // what EncodeOptions::addSpecial adds
  bool addSpacePrefix = false;                                   // of "llama": a text begins with a space
  std::string chatTemplate;                                      // "": none
};

/// The vocabulary of a file; nullopt if it has none. Throws UserError(CheckpointDamaged) for numbers of tokens that the
/// vocabulary lacks, lists of other lengths, unknown types, and more than 2^24 tokens.
std::optional<GgufVocabulary> readVocabulary(const GgufFile &file);

/// The same of a tokenizer's file. Throws UserError(DataInvalid) too if it has none.
GgufVocabulary requireVocabulary(const std::string &path);

/// Appends the keys of a vocabulary; of null, those that say that there is none.
void addVocabulary(GgufKeys &keys, const GgufVocabulary *vocabulary);

}  // namespace gptc
