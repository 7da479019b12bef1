// How a tokenizer cuts a normalized text into words, which its model turns into tokens one by one: the pre-tokenizers
// of Hugging Face's `tokenizers`.
#pragma once

#include "frontends/tokenizer/regex.h"
#include "frontends/tokenizer/words.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace gptc {

/// Where a word stands.
struct WordPlace {
  bool start = true;       // at the very start of the text
  bool continues = false;  // which goes on where an earlier one ended
};

using Words = llvm::function_ref<void(std::string_view word, WordPlace place)>;

class PreTokenizer {
public:
  virtual ~PreTokenizer() = default;
  /// Calls `words` for each word of a text that is not empty, in order. The text is valid UTF-8, unless the step takes
  /// any bytes.
  virtual void split(std::string_view text, WordPlace place, Words words) const = 0;
  /// Whether a text may be any bytes.
  virtual bool takesBytes() const { return false; }
  /// Whether the words stay the same if a text is cut between an ASCII letter and a line feed.
  enum class Cut { no, within, always };  // within: if another step makes two words of it
  virtual Cut cutBeforeLineFeed() const { return Cut::no; }
  /// The same between an ASCII letter and a space, where the model cuts words before spaces too.
  virtual bool cutsBeforeSpace() const { return false; }
};

/// What becomes of the text between words, or of the words, if a pattern is found.
enum class SplitBehavior { removed, isolated, mergedWithPrevious, mergedWithNext, contiguous };

// The pre-tokenizers of tokenizer.json, by the names that they have there.
std::unique_ptr<PreTokenizer> splitOn(Regex pattern, SplitBehavior behavior, bool invert, bool cutsBeforeLineFeed);
std::unique_ptr<PreTokenizer> splitOn(std::string pattern, SplitBehavior behavior, bool invert);
/// A pattern that words.h knows, isolated.
std::unique_ptr<PreTokenizer> splitByHand(FirstWord firstWord);
std::unique_ptr<PreTokenizer> digits(bool individual);
std::unique_ptr<PreTokenizer> punctuation(SplitBehavior behavior);
std::unique_ptr<PreTokenizer> whitespaceSplit();
std::unique_ptr<PreTokenizer> bertPreTokenizer();
/// Bytes become printable characters, if the model is none over bytes, or other steps follow.
std::unique_ptr<PreTokenizer> byteLevel(bool prefixSpace, bool splitWords, bool print);
enum class PrependScheme { always, first, never };
std::unique_ptr<PreTokenizer> metaspace(std::string replacement, PrependScheme scheme, bool split);
std::unique_ptr<PreTokenizer> allOf(std::vector<std::unique_ptr<PreTokenizer>> all);

}  // namespace gptc
