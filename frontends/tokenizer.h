// Converts text to tokens and back. All tokenizers are byte-pair encoding (Sennrich et al. 2016) over an alphabet:
//   char          the sorted set of the text's characters, no merges (like nanoGPT's character data)
//   byte          the 256 bytes, no merges; token = byte
//   bpe:N         the 256 bytes in GPT-2's order, trained merges, and <|endoftext|> as the last of N tokens
//   gpt2:FILE     GPT-2's merges file: exactly GPT-2's tokens
//
// tokenizer.json has the format of Hugging Face's `tokenizers`, model type BPE, so that other tools can read it; other
// files of that type can be read too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gptc {

class Tokenizer {
public:
  /// Alphabet: the sorted set of the texts' characters. The texts must be valid UTF-8.
  static Tokenizer characters(const std::vector<std::string_view> &texts);
  static Tokenizer bytes();
  /// Learns merges until there are `vocab` (>= 257) tokens or no pair occurs twice. Deterministic: of pairs with equal
  /// counts the one with smaller ids wins.
  static Tokenizer train(const std::vector<std::string_view> &texts, int64_t vocab);
  /// Reads GPT-2's merges file: a "#version" line, then one merge per line. Throws UserError(FileMissing, DataInvalid).
  static Tokenizer fromMerges(const std::string &file);
  /// Reads a tokenizer.json. Throws UserErrors FileMissing, DataInvalid, and NotBuiltYet for unsupported parts of the
  /// format.
  static Tokenizer load(const std::string &file);
  static Tokenizer fromJson(const std::string &text, const std::string &file);

  /// Appends the tokens of a text; special tokens are not recognised. Throws UserError(DataInvalid) for a character
  /// outside the alphabet. Not thread-safe, because it caches words.
  void encode(std::string_view text, std::vector<int32_t> &out) const;
  std::vector<int32_t> encode(std::string_view text) const;
  /// Bytes of one token; "" for unknown ids. A token may end within a character: see TextStream.
  const std::string &text(int32_t token) const;
  std::string decode(const std::vector<int32_t> &tokens) const;
  int64_t vocabSize() const { return int64_t(pieces.size()); }
  /// Id of <|endoftext|>; -1 if there is none.
  int32_t endOfText() const { return eot; }
  /// One line: "bpe, 4096 tokens".
  std::string describe() const;
  /// Content of tokenizer.json.
  std::string json() const;

private:
  struct Merge {
    int32_t left, right;
  };

  void addByteAlphabet(bool gpt2Order);
  void addMerge(int32_t left, int32_t right, int32_t into);
  void addEndOfText();
  /// Fills `symbols` from the pieces that consist of one symbol.
  void indexAlphabet();
  void encodeWord(std::string_view word, std::vector<int32_t> &out) const;
  void symbolsOf(std::string_view word, std::vector<int32_t> &out) const;

  bool byteLevel = true;            // the alphabet is bytes; else characters
  bool splitWords = true;           // encode each of GPT-2's words separately
  std::vector<std::string> pieces;  // token -> bytes
  std::vector<Merge> merges;        // by rank
  std::vector<int32_t> mergedInto;  // rank -> token
  int32_t eot = -1;
  std::vector<int32_t> symbols;                                        // byte or character -> token, -1 for none
  std::unordered_map<uint64_t, int32_t> ranks;                         // left << 32 | right -> rank
  mutable std::unordered_map<std::string, std::vector<int32_t>> seen;  // cache: word -> tokens
};

/// Splits text into GPT-2's words by the pattern
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// Returns the length in bytes of the first word of a non-empty text.
size_t firstWord(std::string_view text);

/// GPT-2's encoding of bytes as printable characters, one per byte, and back.
std::string printableBytes(std::string_view bytes);
/// False if `text` contains a character that encodes no byte.
bool bytesOfPrintable(std::string_view text, std::string &bytes);

/// Converts tokens to text that always ends on a complete character, for printing while sampling. Invalid UTF-8 becomes
/// U+FFFD.
class TextStream {
public:
  explicit TextStream(const Tokenizer &t) : tokenizer(t) {}
  /// Returns the text that this token completes.
  std::string push(int32_t token);
  /// Returns the rest; an incomplete character becomes U+FFFD.
  std::string finish();

private:
  const Tokenizer &tokenizer;
  std::string pending;
};

}  // namespace gptc
