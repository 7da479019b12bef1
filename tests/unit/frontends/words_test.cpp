// Words by hand against Oniguruma's matches of the patterns that they stand for.
#include "frontends/tokenizer/words.h"

#include "frontends/tokenizer/regex.h"
#include "frontends/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include <random>

using namespace gptc;

namespace {

constexpr const char *patterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

/// Random text in which all that patterns tell apart is frequent, and every code point possible.
std::string randomText(std::mt19937 &random) {
  const char *const parts[] = {"'",       "s",  "S",    "ſ",  "'re", "'VE",    "'Ll",    "'d", "'M", "'t", " ",
                               "  ",      "\n", "\r\n", "\r", "\t",  "\u00a0", "\u3000", "a",  "Z",  "é",  "中",
                               "e\u0301", "1",  "٣",    "½",  "Ⅷ",   "1234",   "!",      "?",  "—",  "_",  "😀"};
  std::string text;
  for (int n = 1 + int(random() % 40); n > 0; --n)
    if (random() % 4) {
      text += parts[random() % std::size(parts)];
    } else {
      uint32_t c;
      do
        c = random() % 3 ? random() % 0x3000 : random() % 0x110000;
      while (c >= 0xd800 && c < 0xe000);
      appendUtf8(text, c);
    }
  return text;
}

TEST(Words, ByHandAreOnigurumasMatches) {
  std::mt19937 random(5);
  for (const char *pattern : patterns) {
    const FirstWord first = wordsOfPattern(pattern);
    ASSERT_TRUE(first) << pattern;
    EXPECT_TRUE(cutsBeforeLineFeed(pattern));
    const Regex regex(pattern, "test");
    for (int i = 0; i < 20000; ++i) {
      const std::string text = randomText(random);
      size_t at = 0;
      for (const auto &[begin, end] : regex.findAll(text)) {
        ASSERT_EQ(begin, at) << pattern << " of \"" << text << "\"";
        ASSERT_EQ(at + first(std::string_view(text).substr(at)), end) << pattern << " of \"" << text << "\" at " << at;
        at = end;
      }
      ASSERT_EQ(at, text.size());
    }
  }
  EXPECT_FALSE(wordsOfPattern("\\w+"));
}

TEST(Words, EveryCharacterIsOfOnigurumasClass) {
  const Regex letter("\\p{L}", "test"), number("\\p{N}", "test"), space("\\s", "test");
  for (uint32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000)
      continue;
    std::string text;
    appendUtf8(text, c);
    const CharClass is = letter.find(text, 0)   ? CharClass::letter
                         : number.find(text, 0) ? CharClass::number
                         : space.find(text, 0)  ? CharClass::space
                                                : CharClass::other;
    ASSERT_EQ(charClass(c), is) << std::hex << c;
  }
}

}  // namespace
