// How tokens become text: the decoders of Hugging Face's `tokenizers`, and SentencePiece's.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace gptc {

class Regex;

class Decoder {
public:
  virtual ~Decoder() = default;
  /// Changes the texts of tokens, as the vocabulary has them; their concatenation is the text. Bytes of a character
  /// that several tokens share may be split between them.
  virtual void apply(std::vector<std::string> &tokens) const = 0;
};

// The decoders of tokenizer.json, by the names that they have there. Tokens of a byte-level BPE are bytes already.
std::unique_ptr<Decoder> metaspaceDecoder(std::string replacement, bool stripsFirst);
std::unique_ptr<Decoder> wordPieceDecoder(std::string prefix, bool cleanUp);
std::unique_ptr<Decoder> byteFallbackDecoder();
std::unique_ptr<Decoder> fuseDecoder();
std::unique_ptr<Decoder> replaceDecoder(std::string from, std::string to);
std::unique_ptr<Decoder> replaceDecoder(Regex from, std::string to);
/// Removes up to `left` and `right` of a character from the ends of each token.
std::unique_ptr<Decoder> stripDecoder(std::string character, size_t left, size_t right);
std::unique_ptr<Decoder> bpeDecoder(std::string suffix);
/// Where there is no decoder: spaces between tokens.
std::unique_ptr<Decoder> spacesBetween();
std::unique_ptr<Decoder> allOf(std::vector<std::unique_ptr<Decoder>> all);

}  // namespace gptc
