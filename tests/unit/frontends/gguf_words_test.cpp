// How the byte-level vocabularies of GGUF files split a text into words, by tokenizer.ggml.pre.
#include "frontends/gguf/vocabulary.h"
#include "frontends/tokenizer/printable.h"
#include "frontends/tokenizer/tokenizer.h"
#include "support/files.h"
#include "support/gguf/gguf_file.h"
#include "support/json.h"

#include "llvm/ADT/ScopeExit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <unistd.h>

using namespace gptc;

namespace {

using Texts = std::vector<std::string>;
using Ids = std::vector<int32_t>;

const std::string folder = GPTC_SOURCE_DIR "/tests/unit/frontends/tokenizers/";

/// The 256 bytes, merges across the places where families split differently, and a word that no merge makes.
GgufVocabulary vocabularyWith(const std::string &pre) {
  GgufVocabulary v;
  v.model = "gpt2";
  v.pre = pre;
  for (int b = 0; b < 256; ++b)
    v.tokens.push_back(printableBytes(std::string(1, char(b))));
  for (const auto &[left, right] : {std::pair("a", "1"),
                                    {"(", "a"},
                                    {"1", "2"},
                                    {"12", "3"},
                                    {"123", "4"},
                                    {"'", "L"},
                                    {"'L", "L"},
                                    {"!", "\n"},
                                    {"a", "."},
                                    {"a", "-"}}) {
    const std::string l = printableBytes(left), r = printableBytes(right);
    v.merges.push_back(l + " " + r);
    v.tokens.push_back(l + r);
  }
  v.tokens.push_back(printableBytes(" qz"));
  return v;
}

/// The tokens' texts of a text, with | between them.
std::string split(const Tokenizer &t, const std::string &text) {
  std::string all;
  for (const int32_t id : t.encode(text))
    all += (all.empty() ? "" : "|") + t.text(id);
  return all;
}

TEST(GgufWords, AreSplitAsTheNameSays) {
  const Texts texts = {"(a a1 1234 qz", "I'LL!\n", "a. a-"};
  const Texts gpt2 = {"(|a| |a|1| |1234| |q|z", "I|'|L|L|!|\n", "a|.| |a|-"},
              llama3 = {"(a| |a|1| |123|4| qz", "I|'LL|!\n", "a|.| |a|-"},
              dbrx = {"(a| |a|1| |123|4| |q|z", llama3[1], llama3[2]},
              qwen2 = {"(a| |a|1| |1|2|3|4| |q|z", llama3[1], llama3[2]},
              smollm = {"(|a| |a|1| |1|2|3|4| |q|z", gpt2[1], gpt2[2]},
              bloom = {"(|a| |a1| |1234| |q|z", "I|'LL|!\n", "a|.| |a-"};
  // Each name stands here by itself, as llama.cpp has it (llama-vocab.cpp).
  const std::map<std::string, Texts> wanted = {
      {"gpt-2", gpt2},       {"phi-2", gpt2},       {"mpt", gpt2},        {"olmo", gpt2},         {"jais", gpt2},
      {"llama-bpe", llama3}, {"llama3", llama3},    {"llama-v3", llama3}, {"dbrx", dbrx},         {"smaug-bpe", dbrx},
      {"qwen2", qwen2},      {"stablelm2", qwen2},  {"smollm", smollm},   {"starcoder", smollm},  {"refact", smollm},
      {"command-r", smollm}, {"codeshell", smollm}, {"bloom", bloom},     {"gpt3-finnish", bloom}};
  EXPECT_EQ(wanted.size(), 19u);
  for (const auto &[pre, pieces] : wanted) {
    const Tokenizer t = Tokenizer::fromGguf(vocabularyWith(pre), "x.gguf");
    const Tokenizer back = Tokenizer::fromJson(t.file().content, "x");
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(split(t, texts[i]), pieces[i]) << pre;
      EXPECT_EQ(split(back, texts[i]), pieces[i]) << pre << ", by the tokenizer.json that is written of it";
    }
  }
}

/// Where a file does not say whether a text begins with a token, llama.cpp puts one for Llama 3's names alone.
TEST(GgufWords, OfLlama3BeginWithAToken) {
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / fmt::format("gptc-begins-{}.gguf", ::getpid())).string();
  const auto gone = llvm::make_scope_exit([&] { std::filesystem::remove(path); });
  for (const auto &[pre, begins] : {std::pair("llama-bpe", true),
                                    {"llama3", true},
                                    {"llama-v3", true},
                                    {"dbrx", false},
                                    {"gpt-2", false},
                                    {"qwen2", false},
                                    {"bloom", false}}) {
    GgufVocabulary v = vocabularyWith(pre);
    v.types.assign(v.tokens.size(), GgufVocabulary::normal);
    GgufKeys keys = {{"general.architecture", std::string("llama")}};
    addVocabulary(keys, &v);
    std::erase_if(keys, [](const auto &key) { return key.first == "tokenizer.ggml.add_bos_token"; });
    GgufWriter(path, keys, {}).finish();
    EXPECT_EQ(readVocabulary(GgufFile(path))->addBos, begins) << pre;
  }
}

/// A tokenizer.json of BLOOM's kind, whose vocabulary lacks the end of text that the model has beside it.
TEST(GgufWords, OfBloomGoOutAndComeBack) {
  const std::string text = readInput(folder + "bloom.json", "tokenizer");
  const int64_t size = int64_t(parseJson(text)["model"]["vocab"].size()) + 1;
  const GgufVocabulary v = vocabularyOf({{"tokenizer.json", text}}, "x", size);
  EXPECT_EQ(v.pre, "bloom");
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / fmt::format("gptc-bloom-{}.gguf", ::getpid())).string();
  const auto gone = llvm::make_scope_exit([&] { std::filesystem::remove(path); });
  GgufKeys keys = {{"general.architecture", std::string("bloom")}};
  addVocabulary(keys, &v);
  GgufWriter(path, keys, {}).finish();
  const Tokenizer t = Tokenizer::load(path);

  const auto goldens = parseJson(readInput(folder + "goldens.json", "goldens"));
  int compared = 0;
  for (const auto &g : goldens["tokenizers"])
    for (size_t i = 0; g["file"] == "bloom.json" && i < g["plain"].size(); ++i, ++compared)
      EXPECT_EQ(t.encode(goldens["texts"][i].get<std::string>()), g["plain"][i].get<Ids>()) << goldens["texts"][i];
  EXPECT_GE(compared, 10);
  // The two spellings of the pattern are one, at each of its characters.
  const Tokenizer own = Tokenizer::load(folder + "bloom.json");
  const std::string marks = "he.he,he!he?he…he。he，he、he।he۔he،he(he)he|he[he]he\nhe  he";
  EXPECT_EQ(t.encode(marks), own.encode(marks));
  // Out again, by the tokenizer.json of a folder that is made of the file.
  const GgufVocabulary again =
      vocabularyOf({{"tokenizer.json", t.file().content},
                    {"tokenizer_config.json", nlohmann::json{{"eos_token", v.tokens[size_t(v.eos)]}}.dump()}},
                   "x", size);
  EXPECT_EQ(again.pre, "bloom");
  EXPECT_EQ(again.tokens, v.tokens);
  EXPECT_EQ(again.types, v.types);
  EXPECT_EQ(again.merges, v.merges);
}

}  // namespace
