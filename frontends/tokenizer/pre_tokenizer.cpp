#include "frontends/tokenizer/pre_tokenizer.h"

#include "frontends/tokenizer/normalizer.h"
#include "frontends/tokenizer/printable.h"
#include "frontends/tokenizer/utf8.h"

#include <algorithm>
#include <utf8proc.h>

namespace gptc {
namespace {

struct Part {
  size_t begin, end;
  bool matches;
};

/// Joins matches and what lies between them as `behavior` says, and hands the parts on.
void handOut(std::string_view text, WordPlace place, const std::vector<Part> &parts, SplitBehavior behavior,
             Words words) {
  std::vector<Part> joined;
  const bool backwards = behavior == SplitBehavior::mergedWithNext;
  bool before = false;  // whether the part before was a match
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part &p = parts[backwards ? parts.size() - 1 - i : i];
    bool join = false;
    switch (behavior) {
    case SplitBehavior::removed:
    case SplitBehavior::isolated:
      break;
    case SplitBehavior::contiguous:
      join = p.matches == before;
      break;
    case SplitBehavior::mergedWithPrevious:
    case SplitBehavior::mergedWithNext:
      join = p.matches && !before;
      break;
    }
    before = p.matches;
    if (!join || joined.empty())
      joined.push_back(p);
    else if (backwards)
      joined.back().begin = p.begin;
    else
      joined.back().end = p.end;
  }
  if (backwards)
    std::reverse(joined.begin(), joined.end());
  for (const Part &p : joined)
    if (p.begin < p.end && !(behavior == SplitBehavior::removed && p.matches))
      words(text.substr(p.begin, p.end - p.begin), {place.start && p.begin == 0, place.continues});
}

/// Each character that `is` matches by itself.
template <typename Is> std::vector<Part> partsByCharacter(std::string_view text, Is is) {
  std::vector<Part> parts;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = firstCodePoint(text.substr(at));
    if (is(c.value)) {
      if (begin < at)
        parts.push_back({begin, at, false});
      parts.push_back({at, at + c.length, true});
      begin = at + c.length;
    }
    at += c.length;
  }
  if (begin < text.size())
    parts.push_back({begin, text.size(), false});
  return parts;
}

bool isSpaceCharacter(uint32_t c) { return charClass(c) == CharClass::space; }

/// ASCII's punctuation, symbols included, and Unicode's.
bool isPunctuation(uint32_t c) {
  if (c < 128)
    return (c > 0x20 && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 127);
  switch (utf8proc_category(utf8proc_int32_t(c))) {
  case UTF8PROC_CATEGORY_PC:
  case UTF8PROC_CATEGORY_PD:
  case UTF8PROC_CATEGORY_PS:
  case UTF8PROC_CATEGORY_PE:
  case UTF8PROC_CATEGORY_PI:
  case UTF8PROC_CATEGORY_PF:
  case UTF8PROC_CATEGORY_PO:
    return true;
  default:
    return false;
  }
}

class SplitOnRegex : public PreTokenizer {
public:
  SplitOnRegex(Regex pattern, SplitBehavior behavior, bool invert, bool cuts)
      : pattern(std::move(pattern)), behavior(behavior), invert(invert), cuts(cuts) {}
  void split(std::string_view text, WordPlace place, Words words) const override {
    std::vector<Part> parts;
    size_t done = 0;
    for (const auto &[begin, end] : pattern.findAll(text)) {
      if (done != begin)
        parts.push_back({done, begin, invert});
      parts.push_back({begin, end, !invert});
      done = end;
    }
    if (done < text.size())
      parts.push_back({done, text.size(), invert});
    handOut(text, place, parts, behavior, words);
  }
  Cut cutBeforeLineFeed() const override { return cuts ? Cut::always : Cut::no; }

private:
  Regex pattern;
  SplitBehavior behavior;
  bool invert, cuts;
};

class SplitOnText : public PreTokenizer {
public:
  SplitOnText(std::string pattern, SplitBehavior behavior, bool invert)
      : pattern(std::move(pattern)), behavior(behavior), invert(invert) {}
  void split(std::string_view text, WordPlace place, Words words) const override {
    std::vector<Part> parts;
    size_t done = 0;
    for (size_t at; !pattern.empty() && (at = text.find(pattern, done)) != std::string_view::npos;) {
      if (done != at)
        parts.push_back({done, at, invert});
      done = at + pattern.size();
      parts.push_back({at, done, !invert});
    }
    if (done < text.size())
      parts.push_back({done, text.size(), invert});
    handOut(text, place, parts, behavior, words);
  }

private:
  std::string pattern;
  SplitBehavior behavior;
  bool invert;
};

class SplitByHand : public PreTokenizer {
public:
  explicit SplitByHand(FirstWord firstWord) : firstWord(firstWord) {}
  void split(std::string_view text, WordPlace place, Words words) const override {
    while (!text.empty()) {
      const size_t n = firstWord(text);
      words(text.substr(0, n), place);
      place.start = false;
      text.remove_prefix(n);
    }
  }
  bool takesBytes() const override { return true; }
  Cut cutBeforeLineFeed() const override { return Cut::always; }

private:
  FirstWord firstWord;
};

class Digits : public PreTokenizer {
public:
  explicit Digits(bool individual) : individual(individual) {}
  void split(std::string_view text, WordPlace place, Words words) const override {
    handOut(text, place, partsByCharacter(text, [](uint32_t c) { return charClass(c) == CharClass::number; }),
            individual ? SplitBehavior::isolated : SplitBehavior::contiguous, words);
  }
  bool takesBytes() const override { return true; }
  Cut cutBeforeLineFeed() const override { return Cut::within; }

private:
  bool individual;
};

class Punctuation : public PreTokenizer {
public:
  explicit Punctuation(SplitBehavior behavior) : behavior(behavior) {}
  void split(std::string_view text, WordPlace place, Words words) const override {
    handOut(text, place, partsByCharacter(text, isPunctuation), behavior, words);
  }
  Cut cutBeforeLineFeed() const override { return Cut::within; }

private:
  SplitBehavior behavior;
};

class WhitespaceSplit : public PreTokenizer {
public:
  void split(std::string_view text, WordPlace place, Words words) const override {
    handOut(text, place, partsByCharacter(text, isSpaceCharacter), SplitBehavior::removed, words);
  }
  Cut cutBeforeLineFeed() const override { return Cut::always; }
};

class BertPreTokenizer : public PreTokenizer {
public:
  void split(std::string_view text, WordPlace place, Words words) const override {
    handOut(text, place, partsByCharacter(text, isSpaceCharacter), SplitBehavior::removed,
            [&](std::string_view part, WordPlace at) {
              handOut(part, at, partsByCharacter(part, isPunctuation), SplitBehavior::isolated, words);
            });
  }
  Cut cutBeforeLineFeed() const override { return Cut::always; }
};

class ByteLevel : public PreTokenizer {
public:
  ByteLevel(bool prefixSpace, bool splitWords, bool print)
      : prefixSpace(prefixSpace), splitWords(splitWords), print(print) {}
  void split(std::string_view text, WordPlace place, Words words) const override {
    std::string spaced;
    if (prefixSpace && text[0] != ' ' && !(place.start && place.continues)) {
      spaced = " ";
      spaced += text;
      text = spaced;
    }
    auto hand = [&](std::string_view word, WordPlace at) {
      if (print)
        words(printableBytes(word), at);
      else
        words(word, at);
    };
    if (splitWords)
      SplitByHand(firstWord).split(text, place, hand);
    else
      hand(text, place);
  }
  bool takesBytes() const override { return true; }
  Cut cutBeforeLineFeed() const override { return splitWords ? Cut::always : prefixSpace ? Cut::no : Cut::within; }

private:
  bool prefixSpace, splitWords, print;
};

class Metaspace : public PreTokenizer {
public:
  Metaspace(std::string replacement, PrependScheme scheme, bool splits)
      : replacement(std::move(replacement)), scheme(scheme), splits(splits) {}
  void split(std::string_view text, WordPlace place, Words words) const override {
    std::string spaced(text);
    replaceAll(spaced, " ", replacement);
    const bool prepends = scheme == PrependScheme::always || (scheme == PrependScheme::first && place.start);
    if (prepends && !(place.start && place.continues) && spaced.compare(0, replacement.size(), replacement) != 0)
      spaced.insert(0, replacement);
    if (splits)
      SplitOnText(replacement, SplitBehavior::mergedWithNext, false).split(spaced, place, words);
    else
      words(spaced, place);
  }
  bool cutsBeforeSpace() const override { return true; }

private:
  std::string replacement;
  PrependScheme scheme;
  bool splits;
};

class AllOf : public PreTokenizer {
public:
  explicit AllOf(std::vector<std::unique_ptr<PreTokenizer>> all) : all(std::move(all)) {}
  void split(std::string_view text, WordPlace place, Words words) const override { splitFrom(0, text, place, words); }
  bool takesBytes() const override {
    for (const auto &p : all)
      if (!p->takesBytes())
        return false;
    return true;
  }
  Cut cutBeforeLineFeed() const override {
    Cut cut = Cut::within;
    for (const auto &p : all) {
      const Cut c = p->cutBeforeLineFeed();
      if (c == Cut::no)
        return c;
      if (c == Cut::always)
        cut = c;
    }
    return cut;
  }

private:
  void splitFrom(size_t step, std::string_view text, WordPlace place, Words words) const {
    if (step == all.size())
      return words(text, place);
    all[step]->split(text, place, [&](std::string_view part, WordPlace at) { splitFrom(step + 1, part, at, words); });
  }
  std::vector<std::unique_ptr<PreTokenizer>> all;
};

}  // namespace

std::unique_ptr<PreTokenizer> splitOn(Regex pattern, SplitBehavior behavior, bool invert, bool cutsBeforeLineFeed) {
  return std::make_unique<SplitOnRegex>(std::move(pattern), behavior, invert, cutsBeforeLineFeed);
}
std::unique_ptr<PreTokenizer> splitOn(std::string pattern, SplitBehavior behavior, bool invert) {
  return std::make_unique<SplitOnText>(std::move(pattern), behavior, invert);
}
std::unique_ptr<PreTokenizer> splitByHand(FirstWord firstWord) { return std::make_unique<SplitByHand>(firstWord); }
std::unique_ptr<PreTokenizer> digits(bool individual) { return std::make_unique<Digits>(individual); }
std::unique_ptr<PreTokenizer> punctuation(SplitBehavior behavior) { return std::make_unique<Punctuation>(behavior); }
std::unique_ptr<PreTokenizer> whitespaceSplit() { return std::make_unique<WhitespaceSplit>(); }
std::unique_ptr<PreTokenizer> bertPreTokenizer() { return std::make_unique<BertPreTokenizer>(); }
std::unique_ptr<PreTokenizer> byteLevel(bool prefixSpace, bool splitWords, bool print) {
  return std::make_unique<ByteLevel>(prefixSpace, splitWords, print);
}
std::unique_ptr<PreTokenizer> metaspace(std::string replacement, PrependScheme scheme, bool split) {
  return std::make_unique<Metaspace>(std::move(replacement), scheme, split);
}
std::unique_ptr<PreTokenizer> allOf(std::vector<std::unique_ptr<PreTokenizer>> all) {
  return std::make_unique<AllOf>(std::move(all));
}

}  // namespace gptc
