// What a tokenizer is made of. A text passes, from top to bottom: tokens that stand beside the vocabulary are taken
// out; the rest is normalized; normalized tokens are taken out; the rest is cut into words; each word becomes tokens.
#pragma once

#include "frontends/tokenizer/added_tokens.h"
#include "frontends/tokenizer/decoder.h"
#include "frontends/tokenizer/model.h"
#include "frontends/tokenizer/normalizer.h"
#include "frontends/tokenizer/pre_tokenizer.h"
#include "frontends/tokenizer/tokenizer.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc {

struct Pipeline {
  std::string kind = "bpe";         // for describe()
  std::vector<std::string> pieces;  // id -> text, "" for none; bytes of a byte-level BPE
  std::vector<bool> control;        // id -> whether it is a control token
  AddedTokens added, normalizedAdded;
  std::unique_ptr<Normalizer> normalizer;      // null: none
  std::unique_ptr<PreTokenizer> preTokenizer;  // null: a text is one word
  std::unique_ptr<Model> model;
  bool bytes = false;                                // the model takes bytes
  bool printed = false;                              // but words come with a printable character for each
  std::unique_ptr<Decoder> decoder;                  // null: a text is the concatenation of its pieces
  std::vector<SequencePart> single = {{.text = 0}};  // what is put around a text
  std::vector<SequencePart> pair;                    // around two texts; empty: not known
  int32_t endOfText = -1;
  bool cutsAnywhere = false;  // each character is a token
  TokenizerFile file;

  /// Puts a token into `pieces`. Throws UserError(DataInvalid) for an id out of range, or given to another text before.
  void place(int64_t id, std::string text, const std::string &where);
  /// Makes it one of the control tokens.
  void setControl(int32_t id);
  /// Puts tokens around a text, with type 0; -1: none.
  void surround(int32_t before, int32_t after);
  /// Looks for the token that ends a document, by its usual names; not if one is set.
  void findEndOfText();
};

constexpr int64_t kMostTokens = 1 << 24;

/// What a BPE is beside its pieces. Its tokens are the pieces that are not among `added`.
struct BpeParts {
  std::vector<std::pair<int32_t, int32_t>> merges;  // by rank
  std::vector<int32_t> into;                        // what each makes
  std::vector<int32_t> ranks;                       // of each merge; empty: their order
  std::vector<AddedToken> added;
  bool digitsAlone = false;  // digits are taken out one by one before anything else
  bool splitWords = true;    // false: a text is one word
  std::string pattern;       // of words; empty: GPT-2's
  bool ignoreMerges = false;
};

/// tokenizer.json of a byte-level BPE, or of one over characters without merges, as `tokenizers` reads it. Merges that
/// make one token have different ranks there, since the format knows no equal ones.
std::string bpeJson(const Pipeline &p, const BpeParts &bpe);

/// Pieces of GPT-2's 256 bytes, in its order.
void addByteAlphabet(Pipeline &p, bool gpt2Order);
/// Appends a control token to the pieces.
void addControl(Pipeline &p, BpeParts &bpe, const std::string &name);

/// A byte-level BPE of the pieces of `p`. `where`: the file, for messages.
Tokenizer finishByteLevel(std::unique_ptr<Pipeline> p, const BpeParts &bpe, const std::string &where);

}  // namespace gptc
