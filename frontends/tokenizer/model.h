// What turns a word into tokens. A model never changes once it is made, so that threads share it.
#pragma once

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gptc {

class Model {
public:
  virtual ~Model() = default;
  /// Appends the tokens of a word. Throws UserError(DataInvalid) for text that the model has no token for.
  virtual void encode(std::string_view word, std::vector<int32_t> &out) const = 0;
  /// Whether no token has text before a U+2581 (a space) that is none itself: then a word may be cut before each space
  /// that follows something else, with the same tokens.
  virtual bool cutsBeforeSpace() const { return false; }
};

/// A token as the model knows it, and its id. Model text is the text after normalizers and pre-tokenizers; for a BPE
/// over bytes it is bytes.
using VocabularyIds = llvm::StringMap<int32_t>;

/// The ids of "<0x00>" to "<0xFF>"; -1 where there is none.
std::array<int32_t, 256> byteTokens(const VocabularyIds &ids);

// ---- byte-pair encoding (Sennrich et al. 2016)
// -----------------------------------------------------------------------

struct BpeOptions {
  bool bytes = false;          // the alphabet is bytes; else characters
  bool ignoreMerges = false;   // a word that is a token is that token
  bool byteFallback = false;   // unknown characters become tokens <0xXX>
  bool fuseUnknown = false;    // neighbouring unknown characters are one token
  int32_t unknown = -1;        // -1: unknown characters are an error
  std::string prefix, suffix;  // of pieces that continue a word, and that end it
};

/// Merges neighbours in order of rank, of equal ranks leftmost first.
class Bpe : public Model {
public:
  explicit Bpe(BpeOptions options) : options(std::move(options)) {}
  void add(std::string_view piece, int32_t id);
  /// The first of equal pairs counts.
  void addMerge(int32_t left, int32_t right, int32_t into, int32_t rank);
  /// After the last add. `pieces`: text of all tokens.
  void finish(const std::vector<std::string> &pieces);

  void encode(std::string_view word, std::vector<int32_t> &out) const override;
  bool cutsBeforeSpace() const override { return spacesLead; }
  bool hasMerges() const { return !merges.empty(); }
  /// The symbols of a word, before any merge.
  void symbolsOf(std::string_view word, std::vector<int32_t> &out) const;

private:
  struct Merge {
    int32_t rank, into;
  };
  const Merge *mergeOf(int32_t left, int32_t right) const;
  void mergeShort(std::vector<int32_t> &ids) const;
  void mergeLong(std::vector<int32_t> &ids) const;
  int32_t symbolOf(std::string_view character, bool first, bool last) const;

  BpeOptions options;
  VocabularyIds ids;
  std::vector<int32_t> symbols;  // byte or code point -> token, -1 for none; without prefix and suffix
  std::array<int32_t, 256> fallback;
  llvm::DenseMap<uint64_t, Merge> merges;  // left << 32 | right
  bool spacesLead = false;
};

// ---- unigram language model (Kudo 2018)
// ------------------------------------------------------------------------------

struct UnigramPiece {
  std::string text;
  double score;
  enum Kind { normal, userDefined, hidden } kind = normal;  // hidden: never comes out of text
};

/// The segmentation of the highest sum of scores; of equal ones that which a left-to-right search finds first.
class Unigram : public Model {
public:
  struct Options {
    int32_t unknown = -1;
    bool byteFallback = false;
    bool singlePrecision = false;  // sums rounded to float, as SentencePiece's are; else doubles, as in `tokenizers`
  };
  Unigram(const std::vector<UnigramPiece> &pieces, Options options);
  ~Unigram() override;
  // A word is never cut before spaces: the rounding of a sum, which tells equal segmentations apart, depends on what
  // stands before it.
  void encode(std::string_view word, std::vector<int32_t> &out) const override;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

// ---- WordPiece (Schuster & Nakajima 2012, as in BERT) and whole words
// ---------------------------------------------------

class WordPiece : public Model {
public:
  WordPiece(VocabularyIds ids, int32_t unknown, std::string prefix, int64_t longest)
      : ids(std::move(ids)), unknown(unknown), prefix(std::move(prefix)), longest(longest) {}
  void encode(std::string_view word, std::vector<int32_t> &out) const override;

private:
  VocabularyIds ids;
  int32_t unknown;
  std::string prefix;
  int64_t longest;  // characters of a word; longer ones are unknown
};

class WholeWords : public Model {
public:
  WholeWords(VocabularyIds ids, int32_t unknown) : ids(std::move(ids)), unknown(unknown) {}
  void encode(std::string_view word, std::vector<int32_t> &out) const override;

private:
  VocabularyIds ids;
  int32_t unknown;  // -1: an unknown word is an error
};

/// Throws the error for text that a vocabulary has no token for.
[[noreturn]] void notInVocabulary(std::string_view text, bool bytes);

/// Whether U+2581 is never preceded by another character in a piece.
bool spaceLeads(std::string_view piece);

}  // namespace gptc
