// Converts text to tokens and back.
//
// Own tokenizers are byte-pair encoding (Sennrich et al. 2016) over an alphabet:
//   char          the sorted set of the text's characters, no merges (like nanoGPT's character data)
//   byte          the 256 bytes, no merges; token = byte
//   bpe:N         the 256 bytes in GPT-2's order, trained merges, and <|endoftext|> as the last of N tokens
//   gpt2:FILE     GPT-2's merges file: exactly GPT-2's tokens
//
// Those of other programs are read from
//   tokenizer.json      Hugging Face's `tokenizers`: BPE, Unigram, WordPiece and WordLevel with their normalizers,
//                       pre-tokenizers, post-processors and decoders
//   tokenizer.model     SentencePiece: BPE and unigram (sentencepiece_model.proto)
//   tekken.json         Mistral's, with pattern, ranks and control tokens
//   NAME.tiktoken       tiktoken's ranks, one token and its rank a line; the pattern is named beside the file
//   NAME.gguf           the vocabulary of a GGUF file: BPE over bytes, or SentencePiece's BPE
//
// What a file asks for and gptc does not know is a coded error, never left out.
#pragma once

#include "frontends/tokenizer/gguf_vocabulary.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gptc {

/// The token that GPT-2 puts between texts.
inline constexpr const char *kEndOfText = "<|endoftext|>";

struct Pipeline;
class WordCache;
class WordCounts;
class CharacterSet;

struct EncodeOptions {
  /// Control tokens (special = true; SentencePiece's type CONTROL) that stand in the text become their tokens. Else
  /// they are text like any other, so that no text can play a turn of a conversation.
  bool parseSpecial = false;
  /// The tokens that the tokenizer puts around a text, as <s> or [CLS].
  bool addSpecial = false;
  /// The text goes on where an earlier one ended, at a place that Tokenizer::cut allows: nothing is put before it.
  bool continues = false;
  /// A later text goes on where this one ends: nothing is put behind it.
  bool continued = false;
  /// Ranges of bytes, in order, whose control tokens are text even if those of the rest are parsed. Null: none.
  const std::vector<std::pair<size_t, size_t>> *foreign = nullptr;
};

/// A part of what a model reads of a text or of a pair of texts: all tokens of one of them, or a token around them.
struct SequencePart {
  int text = -1;       // 0, or 1 for the second of a pair; -1: `token`
  int32_t token = -1;  // a control token
  int32_t type = 0;    // of its tokens, by which BERT tells two texts apart
};

/// Where a text may be cut so that the tokens of its parts, one after the other, are its tokens.
enum class CutPoint {
  nowhere,
  anywhere,        // between characters
  beforeLineFeed,  // between an ASCII letter and a line feed
  beforeSpace,     // between an ASCII letter and a space
};

/// A tokenizer as a file that Tokenizer::load takes.
struct TokenizerFile {
  std::string name;  // "tokenizer.json", "tokenizer.model"
  std::string content;
};

/// Copies share all but a cache of words, which is why two threads need a copy each.
class Tokenizer {
public:
  static Tokenizer characters(const CharacterSet &used);
  static Tokenizer bytes();
  /// Learns merges until there are `vocab` (>= 257) tokens or no pair occurs twice. Deterministic: of pairs with equal
  /// counts the one with smaller ids wins.
  static Tokenizer train(const WordCounts &words, int64_t vocab);
  /// Reads GPT-2's merges file: a "#version" line, then one merge per line. Throws UserError(FileMissing, DataInvalid).
  static Tokenizer fromMerges(const std::string &file);
  /// Reads a file of the formats above, told apart by their content. "FILE:PATTERN" names the pattern of tiktoken's
  /// ranks: gpt2, cl100k, o200k or llama3. Throws UserErrors FileMissing, DataInvalid, TooLarge, NotBuiltYet for parts
  /// that gptc does not know, and CheckpointDamaged for GGUF files. `file` is for messages.
  static Tokenizer load(const std::string &file);
  /// `end` is the added token that ends a document if none has a usual name (endOfText()).
  static Tokenizer fromJson(const std::string &text, const std::string &file, const std::string &end = "");
  static Tokenizer fromTekken(const std::string &text, const std::string &file);
  static Tokenizer fromSentencePiece(const std::string &content, const std::string &file);
  static Tokenizer fromTiktoken(const std::string &content, const std::string &file, const std::string &pattern);
  static Tokenizer fromGguf(const GgufVocabulary &vocabulary, const std::string &file);

  explicit Tokenizer(std::shared_ptr<const Pipeline> pipeline);
  Tokenizer(const Tokenizer &other);
  Tokenizer(Tokenizer &&) noexcept;
  Tokenizer &operator=(Tokenizer &&) noexcept;
  ~Tokenizer();

  /// Appends the tokens of a text and returns how many control tokens stand in it. Throws UserError(DataInvalid) for
  /// text that the vocabulary has no token for, and for what is no UTF-8 unless the tokenizer takes bytes as they are.
  int64_t encode(std::string_view text, std::vector<int32_t> &out, const EncodeOptions &options = {}) const;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions &options = {}) const;
  /// What a model reads of one text, which is what EncodeOptions::addSpecial adds, or of `texts` = 2. Each text is
  /// there once. Empty if the tokenizer's file does not say how a pair is read.
  std::vector<SequencePart> sequenceOf(int texts) const;
  CutPoint cut() const;
  /// Text of one token as the vocabulary has it; "" for unknown ids. A token of bytes may end within a character.
  const std::string &text(int32_t token) const;
  bool isControl(int32_t token) const;
  /// The text of tokens, control tokens included.
  std::string decode(const std::vector<int32_t> &tokens) const;
  /// Whether a text is the concatenation of its tokens' texts.
  bool decodesByToken() const;
  int64_t vocabSize() const;
  /// Id of the token that ends a document; -1 if there is none: <|endoftext|>, <|end_of_text|>, </s> or <eos>, or what
  /// a file, or the tokenizer_config.json beside it, names as its end.
  int32_t endOfText() const;
  /// One line: "bpe, 4096 tokens".
  std::string describe() const;
  /// This tokenizer as a file: that from which it was read, unless its format needs something beside it.
  const TokenizerFile &file() const;

private:
  std::shared_ptr<const Pipeline> pipeline;
  std::unique_ptr<WordCache> cache;
};

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
  std::string pushBytes(int32_t token);
  std::string rest() const;
  const Tokenizer &tokenizer;
  std::string pending;          // bytes of an incomplete character
  std::vector<int32_t> window;  // where tokens depend on their neighbours: the last ones
  size_t said = 0;              // of these, whose text was returned
};

}  // namespace gptc
