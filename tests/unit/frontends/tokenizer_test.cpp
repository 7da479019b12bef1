#include "frontends/tokenizer/tokenizer.h"

#include "frontends/tokenizer/printable.h"
#include "frontends/tokenizer/training.h"
#include "frontends/tokenizer/utf8.h"
#include "frontends/tokenizer/words.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <unistd.h>

using namespace gptc;

namespace {

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    out.emplace_back(text.substr(0, firstWord(text)));
    text.remove_prefix(out.back().size());
  }
  return out;
}

using Words = std::vector<std::string>;
using Ids = std::vector<int32_t>;

Tokenizer trained(const std::vector<std::string_view> &texts, int64_t vocab) {
  WordCounts counts;
  for (std::string_view text : texts)
    counts.add(text);
  return Tokenizer::train(counts, vocab);
}

Tokenizer ofCharacters(const std::vector<std::string_view> &texts) {
  CharacterSet used;
  for (std::string_view text : texts)
    used.add(text);
  return Tokenizer::characters(used);
}

TEST(Words, FollowGpt2sPattern) {
  EXPECT_EQ(words("Hello world"), (Words{"Hello", " world"}));
  EXPECT_EQ(words("it's we'll I'LL"), (Words{"it", "'s", " we", "'ll", " I", "'", "LL"}));
  EXPECT_EQ(words("a  b\n\n c"), (Words{"a", " ", " b", "\n\n", " c"}));
  EXPECT_EQ(words("x   "), (Words{"x", "   "}));
  EXPECT_EQ(words(" "), (Words{" "}));
  EXPECT_EQ(words("abc123?! 45"), (Words{"abc", "123", "?!", " 45"}));
  EXPECT_EQ(words("\tx"), (Words{"\t", "x"}));
  EXPECT_EQ(words("né中文½Ⅷ٣"), (Words{"né中文", "½Ⅷ٣"}));
  EXPECT_EQ(words("\xff\xfe"
                  "a"),
            (Words{"\xff\xfe", "a"}));  // bytes that are no UTF-8 count as punctuation
}

TEST(Utf8, RejectsWhatIsNot) {
  for (const char *bad :
       {"\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "a\xe4\xb8"})
    EXPECT_NE(findInvalidUtf8(bad), std::string::npos) << bad;
  EXPECT_EQ(findInvalidUtf8("aé中😀\xed\x9f\xbf\xef\xbf\xbf\xf4\x8f\xbf\xbf"), std::string::npos);
  for (uint32_t c : {0x7fu, 0x80u, 0x7ffu, 0x800u, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string s;
    appendUtf8(s, c);
    EXPECT_EQ(firstCodePoint(s).value, c);
    EXPECT_EQ(firstCodePoint(s).length, s.size());
    EXPECT_TRUE(firstCodePoint(s).valid);
  }
  EXPECT_EQ(countCodePoints("aé中😀"), 4);
  EXPECT_EQ(bytesOfCodePoints("aé中😀", 3), 6u);
}

TEST(Tokenizer, BytesAreTheirOwnTokens) {
  Tokenizer t = Tokenizer::bytes();
  EXPECT_EQ(t.encode("a\xff"), (Ids{'a', 255}));
  EXPECT_EQ(t.vocabSize(), 256);
  EXPECT_EQ(t.decode({'h', 'i'}), "hi");
  EXPECT_EQ(t.endOfText(), -1);
}

TEST(Tokenizer, CharactersAreSorted) {
  Tokenizer t = ofCharacters({"bca", "é\n"});
  EXPECT_EQ(t.vocabSize(), 5);
  EXPECT_EQ(t.encode("\nabcé"), (Ids{0, 1, 2, 3, 4}));
  try {
    t.encode("axz");
    FAIL();
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::DataInvalid);
    EXPECT_NE(e.diagnostics[0].message.find("\"x\""), std::string::npos);
  }
}

TEST(Tokenizer, LearnsTheMostFrequentPairFirst) {
  // "ab" occurs 4 times; then " ab" 3 times and "bc" twice as part of "ab c": "abc" and " abc" follow.
  Tokenizer t = trained({"ab abc abc ab"}, 260);
  EXPECT_EQ(t.vocabSize(), 260);
  EXPECT_EQ(t.text(256), "ab");
  EXPECT_EQ(t.text(257), " ab");
  EXPECT_EQ(t.text(258), " abc");
  EXPECT_EQ(t.endOfText(), 259);
  EXPECT_EQ(t.encode(" abc ab"), (Ids{258, 257}));
}

TEST(Tokenizer, StopsWhereNoPairOccursTwice) { EXPECT_EQ(trained({"abc"}, 400).vocabSize(), 257); }

TEST(Tokenizer, OfPairsThatStandAsOftenTheFirstIdsMerge) {
  for (const std::vector<std::string_view> &texts :
       {std::vector<std::string_view>{"xy", "ab", "xy", "ab"}, {"ab", "xy", "ab", "xy"}}) {
    Tokenizer t = trained(texts, 258);
    EXPECT_EQ(t.encode("ab").size(), 1u);
    EXPECT_EQ(t.encode("xy").size(), 2u);
  }
}

TEST(Tokenizer, TrainsOnRunsOfOneLetter) {
  Tokenizer t = trained({"aaaaaaaa aaaaaaaa aaaaa"}, 300);
  EXPECT_EQ(t.decode(t.encode("aaaaaaaaaaaaa aaa")), "aaaaaaaaaaaaa aaa");
}

TEST(Tokenizer, EncodesAHugeWordInTime) {
  Tokenizer t = trained({"abababab cdcdcd abcd"}, 270);
  std::string word(1 << 20, 'a');
  for (size_t i = 1; i < word.size(); i += 2)
    word[i] = 'b';
  EXPECT_EQ(t.decode(t.encode(word)), word);
}

TEST(Tokenizer, JsonComesBack) {
  const std::string text = "It's 12 o'clock.\n\nNaïve “quotes” — 中文 ½";
  for (const Tokenizer &t : {Tokenizer::bytes(), ofCharacters({text}), trained({text, text, text}, 290)}) {
    Tokenizer back = Tokenizer::fromJson(t.file().content, "t.json");
    EXPECT_EQ(back.vocabSize(), t.vocabSize());
    EXPECT_EQ(back.encode(text), t.encode(text));
    EXPECT_EQ(back.decode(back.encode(text)), text);
    EXPECT_EQ(back.describe(), t.describe());
    EXPECT_EQ(back.endOfText(), t.endOfText());
    EXPECT_EQ(back.file().content, t.file().content);
  }
}

TEST(Tokenizer, RefusesDamagedJson) {
  auto codeOf = [](const std::string &text) {
    try {
      Tokenizer::fromJson(text, "t.json");
    } catch (const UserError &e) {
      return int(e.diagnostics[0].code);
    }
    return 0;
  };
  EXPECT_EQ(codeOf("{"), 302);
  EXPECT_EQ(codeOf("[]"), 302);
  EXPECT_EQ(codeOf("{}"), 302);
  EXPECT_EQ(codeOf(R"({"model": {"type": "Unigram"}})"), 302);
  EXPECT_EQ(codeOf(R"({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}})"), 302);
  EXPECT_EQ(codeOf(R"({"model": {"type": "BPE", "vocab": {"a": 99999999999}, "merges": []}})"), 302);
  EXPECT_EQ(codeOf(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}})"), 302);
  EXPECT_EQ(codeOf(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}})"), 302);
  EXPECT_EQ(codeOf(R"({"model": {"type": "BPE", "vocab": {}, "merges": []}})"), 302);
  EXPECT_EQ(codeOf(R"({"normalizer": {"type": "Nmt"}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})"),
            208);
  EXPECT_EQ(codeOf(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}})"), 0);
}

class Merges : public testing::Test {
protected:
  std::string file = testing::TempDir() + "/gptc-merges-" + std::to_string(::getpid());
  void write(const std::string &text) { std::ofstream(file) << text; }
  unsigned badLine() {
    try {
      Tokenizer::fromMerges(file);
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::DataInvalid);
      return e.diagnostics[0].where.line;
    }
    return 0;
  }
};

TEST_F(Merges, MakeTokensInGpt2sOrder) {
  // Printable bytes first, then the others, then what each line makes, then the end of a text.
  write("#version: 0.2\n\xc4\xa0 t\n\xc4\xa0 s\nh e\no x\nn g\n");
  Tokenizer t = Tokenizer::fromMerges(file);
  EXPECT_EQ(t.vocabSize(), 262);
  EXPECT_EQ(t.encode("!"), (Ids{0}));
  EXPECT_EQ(t.encode("Hello"), (Ids{39, 68, 75, 75, 78}));
  EXPECT_EQ(t.encode(" the"), (Ids{256, 258}));
  EXPECT_EQ(t.encode("\n"), (Ids{198}));
  EXPECT_EQ(t.endOfText(), 261);
}

TEST_F(Merges, NameTheBadLine) {
  write("#version: 0.2\nh e\nhe\n");
  EXPECT_EQ(badLine(), 3u);
  write("h e\nhe xy\n");
  EXPECT_EQ(badLine(), 2u);
  write("h e\nh e\n");
  EXPECT_EQ(badLine(), 2u);
}

TEST(Gpt2, AThousandMergesOfOurOwn) {
  // Learned from our own documents; the ids are those of another encoder (merges/make.py).
  const std::string folder = GPTC_SOURCE_DIR "/tests/unit/frontends/merges/";
  const Tokenizer t = Tokenizer::fromMerges(folder + "merges-1000.txt");
  EXPECT_EQ(t.vocabSize(), 1257);
  const auto goldens = parseJson(readInput(folder + "ids.json", "goldens"));
  EXPECT_GE(goldens.size(), 12u);
  for (const auto &[text, ids] : goldens.get<std::vector<std::pair<std::string, Ids>>>()) {
    EXPECT_EQ(t.encode(text), ids) << text;
    EXPECT_EQ(t.decode(ids), text);
  }
}

TEST(Gpt2, KnownTokens) {
  const char *given = std::getenv("GPTC_GPT2_MERGES");
  const std::string file = given ? given : GPTC_SOURCE_DIR "/../shared/data/gpt2-merges.txt";
  if (!given && !std::ifstream(file))
    GTEST_SKIP() << "set GPTC_GPT2_MERGES to GPT-2's merges file";
  Tokenizer t = Tokenizer::fromMerges(file);
  EXPECT_EQ(t.vocabSize(), 50257);
  EXPECT_EQ(t.endOfText(), 50256);
  EXPECT_EQ(t.encode("Hello world"), (Ids{15496, 995}));
  EXPECT_EQ(t.decode(t.encode("naïve “中文” 😀")), "naïve “中文” 😀");
}

TEST(TextStream, PrintsWholeCharacters) {
  Tokenizer t = Tokenizer::bytes();
  TextStream stream(t);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xe4), "");
  EXPECT_EQ(stream.push(0xb8), "");
  EXPECT_EQ(stream.push(0xad), "中");
  EXPECT_EQ(stream.push(0xff), "\xef\xbf\xbd");
  EXPECT_EQ(stream.push(0xe4), "");
  EXPECT_EQ(stream.push('b'), "\xef\xbf\xbd"
                              "b");
  EXPECT_EQ(stream.push(0xf0), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
