// SentencePiece's models (Kudo & Richardson 2018): what a file tokenizer.model or a GGUF vocabulary of model "llama"
// says.
#pragma once

#include "frontends/tokenizer/tokenizer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gptc {

struct SentencePieceModel {
  enum Type : uint8_t { normal = 1, unknown = 2, control = 3, userDefined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = normal;
  };
  std::vector<Piece> pieces;
  enum Kind { unigram = 1, bpe = 2 } kind = unigram;
  bool byteFallback = false;
  bool spaceBehind = false;  // the space that is added stands at the end
  // Of the normalizer.
  std::string charsmap;  // "": none
  bool addSpace = true, removeExtraSpaces = true, escapeSpaces = true;
  std::string unknownText = " \u2047 ";  // what an unknown token decodes to
  std::string bos = "<s>", eos = "</s>";
};

/// Parses a message ModelProto of sentencepiece_model.proto. Throws UserErrors DataInvalid, and NotBuiltYet for models
/// of words and characters.
SentencePieceModel parseSentencePiece(const std::string &content, const std::string &file);
/// The message that parseSentencePiece reads.
std::string writeSentencePiece(const SentencePieceModel &model);

/// The model as a tokenizer.json, for programs that read no models of SentencePiece; "" if that format cannot say it.
/// `addBos`, `addEos`: what goes around a text.
std::string sentencePieceJson(const SentencePieceModel &model, bool addBos, bool addEos);
/// Why it cannot say it: spaces behind words, unused pieces that texts have, pieces that users defined where spaces are
/// removed; "" if it can.
std::string sentencePieceJsonProblem(const SentencePieceModel &model);
/// Where a piece may be cut between characters: lengths in bytes of the left parts.
std::vector<size_t> splitsOf(std::string_view piece);

/// `addBos`, `addEos`: what EncodeOptions::addSpecial adds.
Tokenizer sentencePieceTokenizer(SentencePieceModel model, TokenizerFile content, const std::string &file, bool addBos,
                                 bool addEos);

}  // namespace gptc
