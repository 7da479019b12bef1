// Text to tokens and back. One kind of tokenizer serves all: byte-pair encoding (Sennrich et al. 2016) over an
// alphabet.
//   char          the alphabet is the sorted set of the text's characters, no merges (as nanoGPT's character data)
//   byte          the 256 bytes, no merges; token = byte
//   bpe:N         the 256 bytes in GPT-2's order, trained merges, and <|endoftext|> as the last of N tokens
//   gpt2:FILE     GPT-2's merges file: exactly GPT-2's tokens
// tokenizer.json is the format of Hugging Face's `tokenizers`, model type BPE, so that other tools read it too; other
// files of that type are read as well.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace gptc {

class Tokenizer {
public:
  /// The sorted set of characters of the texts, which must be valid UTF-8.
  static Tokenizer characters(const std::vector<std::string_view> &texts);
  static Tokenizer bytes();
  /// Learns merges until there are `vocab` tokens or no pair occurs twice. Deterministic: among pairs of equal count
  /// the one with the smaller ids wins. vocab >= 257.
  static Tokenizer train(const std::vector<std::string_view> &texts, int64_t vocab);
  /// GPT-2's merges file (a "#version" line, then one merge a line). Throws UserError(FileMissing, DataInvalid).
  static Tokenizer fromMerges(const std::string &file);
  /// tokenizer.json. Throws UserError: FileMissing, DataInvalid, or NotBuiltYet for a part of the format that is not.
  static Tokenizer load(const std::string &file);
  static Tokenizer fromJson(const std::string &text, const std::string &file);

  /// Appends the tokens of a text; special tokens are not looked for. A character outside the vocabulary:
  /// UserError(DataInvalid). Not for several threads at once: words seen are remembered.
  void encode(std::string_view text, std::vector<int32_t> &out) const;
  std::vector<int32_t> encode(std::string_view text) const;
  /// Bytes of one token; "" for ids that do not exist. A token may end in the middle of a character: see TextStream.
  const std::string &text(int32_t token) const;
  std::string decode(const std::vector<int32_t> &tokens) const;
  int64_t vocabSize() const { return int64_t(pieces.size()); }
  /// Id of <|endoftext|>, or -1.
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
  /// Fills `symbols` from the pieces that are one symbol long.
  void indexAlphabet();
  void encodeWord(std::string_view word, std::vector<int32_t> &out) const;
  void symbolsOf(std::string_view word, std::vector<int32_t> &out) const;

  bool byteLevel = true;            // the alphabet is bytes, else characters
  bool splitWords = true;           // GPT-2's words are encoded apart
  std::vector<std::string> pieces;  // token -> bytes
  std::vector<Merge> merges;        // by rank
  std::vector<int32_t> mergedInto;  // rank -> token
  int32_t eot = -1;
  std::vector<int32_t> symbols;                                        // byte or character -> token, -1 for none
  std::unordered_map<uint64_t, int32_t> ranks;                         // left << 32 | right -> rank
  mutable std::unordered_map<std::string, std::vector<int32_t>> seen;  // word -> tokens
};

/// Cuts text into the words that GPT-2 encodes apart: the pattern
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// Returns the length in bytes of the first word of a non-empty text.
size_t firstWord(std::string_view text);

/// GPT-2's way to write any bytes as printable characters: a character for each byte, and back.
std::string printableBytes(std::string_view bytes);
/// False where `text` holds a character that stands for no byte.
bool bytesOfPrintable(std::string_view text, std::string &bytes);

/// Turns tokens into text that always ends on a whole character, for printing while sampling. Bytes that are no UTF-8
/// become U+FFFD.
class TextStream {
public:
  explicit TextStream(const Tokenizer &t) : tokenizer(t) {}
  /// The text that became complete with this token.
  std::string push(int32_t token);
  /// What is left; an incomplete character as U+FFFD.
  std::string finish();

private:
  const Tokenizer &tokenizer;
  std::string pending;
};

}  // namespace gptc
