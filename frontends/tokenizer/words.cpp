#include "frontends/tokenizer/words.h"

#include "frontends/tokenizer/patterns.h"
#include "frontends/tokenizer/utf8.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace gptc {
namespace {

/// Class and length of the character at a place; length 0 at the end of the text.
struct Char {
  CharClass kind = CharClass::other;
  unsigned length = 0;
  bool is(CharClass k) const { return length && kind == k; }
};

constexpr std::array<CharClass, 128> ascii = [] {
  std::array<CharClass, 128> of{};
  for (int c = 0; c < 128; ++c)
    of[c] = (c | 32) >= 'a' && (c | 32) <= 'z'     ? CharClass::letter
            : c >= '0' && c <= '9'                 ? CharClass::number
            : c == ' ' || (c >= '\t' && c <= '\r') ? CharClass::space
                                                   : CharClass::other;
  return of;
}();

Char charAt(std::string_view text, size_t at) {
  if (at >= text.size())
    return {};
  if (const uint8_t c = uint8_t(text[at]); c < 128)
    return {ascii[c], 1};
  const CodePoint c = firstCodePoint(text.substr(at));
  return {charClass(c.value), c.length};
}

/// The end of the run of one class that begins at `at`.
size_t runEnd(std::string_view text, size_t at, CharClass kind) {
  for (Char c = charAt(text, at); c.is(kind); c = charAt(text, at))
    at += c.length;
  return at;
}

bool isLineEnd(std::string_view text, size_t at) { return at < text.size() && (text[at] == '\r' || text[at] == '\n'); }

/// White space at the start, without line ends before it: all of it at the end of the text, else all but the last
/// character, which may belong to the next word.
size_t spaceWord(std::string_view text) {
  size_t end = 0, last = 0;
  for (Char c = charAt(text, 0); c.is(CharClass::space); c = charAt(text, end)) {
    last = end;
    end += c.length;
  }
  return end == text.size() || last == 0 ? end : last;
}

/// Length of an ending behind an apostrophe, in any case; 0 if there is none. U+017F is an s in upper case.
size_t endingOf(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'')
    return 0;
  auto low = [&](size_t at) { return at < text.size() ? char(text[at] | 32) : '\0'; };
  if (text.substr(1, 2) == "\u017f")
    return 3;
  const char a = low(1), b = low(2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd')
    return 2;
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
/// \s+(?!\S)|\s+
template <int digits> size_t firstWordLlama3(std::string_view text) {
  if (const size_t n = endingOf(text))
    return n;
  const Char first = charAt(text, 0), second = charAt(text, first.length);
  if (first.kind == CharClass::letter)
    return runEnd(text, first.length, CharClass::letter);
  if (first.kind != CharClass::number && !isLineEnd(text, 0) && second.is(CharClass::letter))
    return runEnd(text, first.length, CharClass::letter);
  if (first.kind == CharClass::number) {
    size_t end = first.length;
    for (int n = 1; n < digits; ++n)
      if (const Char c = charAt(text, end); c.is(CharClass::number))
        end += c.length;
    return end;
  }
  const size_t other = text[0] == ' ' ? 1 : 0;
  if (charAt(text, other).is(CharClass::other)) {
    size_t end = runEnd(text, other, CharClass::other);
    while (isLineEnd(text, end))
      ++end;
    return end;
  }
  const std::string_view space = text.substr(0, runEnd(text, 0, CharClass::space));
  if (const size_t last = space.find_last_of("\r\n"); last != std::string_view::npos)
    return last + 1;
  return spaceWord(text);
}

struct Pattern {
  std::string_view text;
  FirstWord words;  // null: by regular expression
};

constexpr Pattern known[] = {{patterns::gpt2, firstWord},
                             {patterns::llama3, firstWordLlama3<3>},
                             {patterns::qwen2, firstWordLlama3<1>},
                             {patterns::cl100k, nullptr},
                             {patterns::o200k, nullptr},
                             {patterns::tekken, nullptr}};

const Pattern *find(std::string_view text) {
  const Pattern *p = std::find_if(std::begin(known), std::end(known), [&](auto &q) { return q.text == text; });
  return p == std::end(known) ? nullptr : p;
}

}  // namespace

size_t firstWord(std::string_view text) {
  if (text[0] == '\'')
    for (std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.substr(0, ending.size()) == ending)
        return ending.size();
  // An optional space, then a run of one class other than space.
  const size_t at = text[0] == ' ';
  if (const Char c = charAt(text, at); c.length && c.kind != CharClass::space)
    return runEnd(text, at, c.kind);
  return spaceWord(text);
}

FirstWord wordsOfPattern(std::string_view pattern) {
  const Pattern *p = find(pattern);
  return p ? p->words : nullptr;
}

bool cutsBeforeLineFeed(std::string_view pattern) { return find(pattern); }

}  // namespace gptc
