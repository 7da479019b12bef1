// What a tokenizer does to a text before it looks for words: the normalizers of Hugging Face's `tokenizers`, and
// SentencePiece's.
#pragma once

#include "llvm/ADT/STLFunctionalExtras.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gptc {

class Normalizer {
public:
  virtual ~Normalizer() = default;
  /// `continues`: an earlier text goes on here, so nothing is put before it. The text is valid UTF-8. A file may be
  /// hostile: throws UserError(TooLarge) for a text that becomes 64 times as long, and longer than 1 KiB.
  void apply(std::string &text, bool continues) const { within(text, continues, 64 * text.size() + 1024); }
  /// The same for any other number of bytes that the text may have afterwards.
  void within(std::string &text, bool continues, size_t most) const {
    run(text, continues, most);
    check(text.size(), most);
  }
  /// Whether a text may be cut between an ASCII letter and a line feed, or a space, and the parts be normalized each.
  virtual bool local() const = 0;

  std::string where;  // the place in a file, for messages

protected:
  /// Steps that can put a long text for a short one check its bytes meanwhile.
  virtual void run(std::string &text, bool continues, size_t most) const = 0;
  void check(size_t bytes, size_t most) const;
};

enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// A table of replacements that SentencePiece compiled: a double array (Aoe 1989, as in Darts-clone) over UTF-8, and
/// texts that end with a zero byte.
class Charsmap {
public:
  Charsmap() = default;
  /// Throws UserError(DataInvalid) for a table that leads out of itself; `where` is for the message.
  Charsmap(std::string blob, const std::string &where);
  bool empty() const { return units.empty(); }
  struct Entry {
    size_t length = 0;  // bytes of text that it replaces; 0: no entry
    std::string_view text;
  };
  /// The shortest entry that begins a text, which `tokenizers` takes, or the longest, which SentencePiece takes.
  Entry shortest(std::string_view text) const { return find(text, false); }
  Entry longest(std::string_view text) const { return find(text, true); }

private:
  Entry find(std::string_view text, bool longest) const;
  std::vector<uint32_t> units;
  std::string texts;
};

class Regex;

// The normalizers of tokenizer.json, by the names that they have there.
std::unique_ptr<Normalizer> normalForm(NormalForm form);
std::unique_ptr<Normalizer> lowercase();
std::unique_ptr<Normalizer> replaceText(std::string from, std::string to);
std::unique_ptr<Normalizer> replaceMatches(Regex from, std::string to);
std::unique_ptr<Normalizer> prepend(std::string text);
std::unique_ptr<Normalizer> stripSpace(bool left, bool right);
std::unique_ptr<Normalizer> stripAccents();
std::unique_ptr<Normalizer> bertNormalizer(bool cleanText, bool chineseCharacters, bool withoutAccents, bool lower);
std::unique_ptr<Normalizer> precompiled(Charsmap map);
std::unique_ptr<Normalizer> allOf(std::vector<std::unique_ptr<Normalizer>> all);

/// Replaces all occurrences; an empty `from` replaces nothing. `grown` is told the bytes of the new text meanwhile.
using Grown = llvm::function_ref<void(size_t bytes)>;
void replaceAll(std::string &text, std::string_view from, std::string_view to, Grown grown = [](size_t) {});
void replaceAll(std::string &text, const Regex &from, std::string_view to, Grown grown = [](size_t) {});

}  // namespace gptc
