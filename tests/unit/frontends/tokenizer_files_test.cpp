// Tokenizer files of other programs. The goldens in tokenizers/ are what Hugging Face's `tokenizers` and
// `sentencepiece` make of tiny tokenizers of our own (tokenizers/make.py).
#include "frontends/tokenizer/regex.h"
#include "frontends/tokenizer/sentencepiece.h"
#include "frontends/tokenizer/tokenizer.h"
#include "frontends/tokenizer/training.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/ScopeExit.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <unistd.h>

using namespace gptc;

namespace {

using Ids = std::vector<int32_t>;
const std::string folder = GPTC_SOURCE_DIR "/tests/unit/frontends/tokenizers/";

std::string errorOf(llvm::function_ref<void()> call) {
  try {
    call();
  } catch (const UserError &e) {
    return fmt::format("{} {}", int(e.diagnostics[0].code), e.diagnostics[0].message);
  }
  return "";
}

const nlohmann::json &goldens() {
  static const nlohmann::json j = parseJson(readInput(folder + "goldens.json", "goldens"));
  return j;
}

TEST(TokenizerFiles, GiveTheTokensOfTheirOwnLibraries) {
  const auto texts = goldens()["texts"].get<std::vector<std::string>>();
  for (const auto &g : goldens()["tokenizers"]) {
    const std::string file = g["file"];
    const Tokenizer t = Tokenizer::load(folder + file);
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string what = fmt::format("{}, text {}: \"{}\"", file, i, texts[i]);
      EXPECT_EQ(t.encode(texts[i]), g["plain"][i].get<Ids>()) << what;
      if (!g.contains("special"))
        continue;
      EXPECT_EQ(t.encode(texts[i], {.parseSpecial = true, .addSpecial = true}), g["special"][i].get<Ids>()) << what;
    }
  }
}

TEST(TokenizerFiles, DecodeAsTheirOwnLibraries) {
  for (const auto &g : goldens()["tokenizers"]) {
    const Tokenizer t = Tokenizer::load(folder + g["file"].get<std::string>());
    for (size_t i = 0; i < g["plain"].size(); ++i) {
      const Ids ids = g["plain"][i].get<Ids>();
      // `tokenizers` replaces bytes that are no UTF-8 by U+FFFD; a stream does too.
      TextStream stream(t);
      std::string streamed;
      for (int32_t id : ids)
        streamed += stream.push(id);
      streamed += stream.finish();
      const std::string wanted = g["decoded"][i];
      EXPECT_EQ(t.decodesByToken() ? streamed : t.decode(ids), wanted) << g["file"] << ", text " << i;
      // A stream has one U+FFFD where `tokenizers` has several, if at all.
      if (wanted.find("\ufffd") == std::string::npos) {
        EXPECT_EQ(streamed, t.decode(ids)) << g["file"] << ", text " << i;
      }
    }
  }
}

TEST(TokenizerFiles, ComeBackFromWhatIsSaved) {
  for (const auto &g : goldens()["tokenizers"]) {
    const std::string file = g["file"];
    const Tokenizer t = Tokenizer::load(folder + file);
    EXPECT_EQ(t.file().content, readInput(folder + file, "tokenizer")) << file;
  }
}

/// Tokens of pieces that `cut` allows, one after the other.
TEST(TokenizerFiles, PiecesHaveTheTokensOfTheWhole) {
  std::string text = "It's the wall\nof the water, the boats\n\n and <|end|> women\n 12\nlines a  b c\n";
  for (int i = 0; i < 3; ++i)
    text += text;
  int cut = 0;
  for (const auto &g : goldens()["tokenizers"]) {
    const Tokenizer t = Tokenizer::load(folder + g["file"].get<std::string>());
    const CutPoint where = t.cut();
    if (where == CutPoint::nowhere)
      continue;
    ++cut;
    const char after = where == CutPoint::beforeLineFeed ? '\n' : ' ';
    Ids ids;
    size_t begin = 0;
    for (size_t at = 1; at <= text.size(); ++at)
      if (at == text.size() || (text[at] == after && std::isalpha(text[at - 1]))) {
        t.encode(text.substr(begin, at - begin), ids, {.continues = begin > 0});
        begin = at;
      }
    EXPECT_EQ(ids, t.encode(text)) << g["file"];
  }
  EXPECT_GE(cut, 8);
}

TEST(TokenizerFiles, TiktokensMergeByTheRankOfWhatTheyMake) {
  // Ranks: the bytes, then "aa", "aaa", "aaaa": all pairs merge first, then "aa" with "a".
  std::string ranks;
  auto base64 = [](const std::string &s) {
    constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (size_t i = 0; i < s.size(); i += 3) {
      uint32_t v = 0;
      for (size_t k = 0; k < 3; ++k)
        v = v << 8 | (i + k < s.size() ? uint8_t(s[i + k]) : 0);
      for (int k = 0; k < 4; ++k)
        out += i + size_t(k) <= s.size() ? digits[v >> (18 - 6 * k) & 63] : '=';
    }
    return out;
  };
  auto add = [&](const std::string &token, int rank) { ranks += base64(token) + " " + std::to_string(rank) + "\n"; };
  for (int b = 0; b < 256; ++b)
    add(std::string(1, char(b)), b);
  add("aa", 256);
  add("aaa", 257);
  add("aaaa", 258);
  add(" the", 259);
  const Tokenizer t = Tokenizer::fromTiktoken(ranks, "r.tiktoken", "cl100k");
  EXPECT_EQ(t.encode("aaaaa"), (Ids{256, 257}));
  EXPECT_EQ(t.encode("aaa"), (Ids{257}));
  EXPECT_EQ(t.encode("a the123"), (Ids{'a', 259, '1', '2', '3'})) << "a word that is a token";
  EXPECT_EQ(t.vocabSize(), 264);
  EXPECT_EQ(t.endOfText(), 260);
  const Tokenizer back = Tokenizer::fromJson(t.file().content, "t.json");
  for (const char *text : {"aaaaa", "aaaaaaa the aa", "I'LL\r\n\r\n  x"})
    EXPECT_EQ(back.encode(text), t.encode(text)) << text;
}

/// A file with this vocabulary, and what Tokenizer::load makes of it.
Tokenizer loadedFromGguf(const GgufVocabulary *v) {
  const std::string path = fmt::format("{}/gptc-vocabulary-{}.gguf", testing::TempDir(), ::getpid());
  GgufKeys keys = {{"general.architecture", std::string("llama")}};
  addVocabulary(keys, v);
  GgufWriter(path, keys, {}).finish();
  const auto gone = llvm::make_scope_exit([&] { std::filesystem::remove(path); });
  return Tokenizer::load(path);
}

TEST(TokenizerFiles, GgufVocabulariesGiveTheTokensOfTheirFiles) {
  // GPT-2's words over the pieces and merges of a trained tokenizer.
  WordCounts counts;
  counts.add("the boats and the women and the boats of the wall");
  const Tokenizer own = Tokenizer::train(counts, 275);
  const auto j = parseJson(own.file().content);
  GgufVocabulary v;
  v.model = "gpt2";
  v.pre = "gpt-2";
  v.tokens.resize(size_t(own.vocabSize()));
  for (const auto &[text, id] : j["model"]["vocab"].items())
    v.tokens[id.get<size_t>()] = text;
  v.tokens.back() = "<|endoftext|>";
  v.types.assign(v.tokens.size(), 1);
  v.types.back() = 3;
  v.merges = j["model"]["merges"].get<std::vector<std::string>>();
  v.bos = v.eos = int32_t(v.tokens.size()) - 1;
  v.addBos = true;
  const std::string text = "the boats, 12 women\n\n and <|endoftext|>";
  const Tokenizer t = Tokenizer::fromGguf(v, "x.gguf");
  EXPECT_EQ(t.encode(text), own.encode(text));
  EXPECT_EQ(t.endOfText(), v.eos);
  EXPECT_EQ(t.encode("", {.addSpecial = true}), (Ids{int32_t(v.bos)}));
  const Tokenizer read = loadedFromGguf(&v);
  EXPECT_EQ(read.encode(text, {.parseSpecial = true, .addSpecial = true}),
            t.encode(text, {.parseSpecial = true, .addSpecial = true}));
  EXPECT_EQ(read.file().content, t.file().content);
  EXPECT_EQ(Tokenizer::fromJson(t.file().content, "x").encode(text, {.parseSpecial = true, .addSpecial = true}),
            t.encode(text, {.parseSpecial = true, .addSpecial = true}));
  auto codeOf = [](const GgufVocabulary &w) {
    try {
      Tokenizer::fromGguf(w, "x.gguf");
    } catch (const UserError &e) {
      return e.diagnostics[0].code;
    }
    return ErrorCode::Internal;
  };
  GgufVocabulary wrong = v;
  wrong.pre = "default";
  EXPECT_EQ(codeOf(wrong), ErrorCode::NotBuiltYet);
  wrong.pre = "gpt-2";
  wrong.model = "rwkv";
  EXPECT_EQ(codeOf(wrong), ErrorCode::NotBuiltYet);
  wrong = v;
  wrong.types.pop_back();
  EXPECT_EQ(codeOf(wrong), ErrorCode::DataInvalid);
  wrong = v;
  wrong.eos = 1 << 30;
  EXPECT_EQ(codeOf(wrong), ErrorCode::DataInvalid);
  wrong = v;
  wrong.merges[0] = "q zz";
  EXPECT_EQ(codeOf(wrong), ErrorCode::DataInvalid);
}

// llama.cpp's file of phi-3 marks its padding as unknown, and names another token as the unknown one.
TEST(TokenizerFiles, OfSeveralUnknownTokensTheNamedOneIsMeant) {
  GgufVocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "</s>", "[PAD3]", "[PAD4]", "\u2581", "a", "b", "\u2581a"};
  v.types = {3, 3, 3, 2, 2, 1, 1, 1, 1};
  v.scores = {0, 0, 0, 0, 0, -3, -4, -5, -1};
  v.unknown = 0;
  const Tokenizer t = Tokenizer::fromGguf(v, "x.gguf");
  EXPECT_EQ(t.encode("ab"), (Ids{6, 7}));
  EXPECT_EQ(t.encode("az"), (Ids{6, 0})) << "the unknown one";
  EXPECT_EQ(t.encode("ab[PAD4]", {.parseSpecial = true}), (Ids{6, 7, 4})) << "a control token";
  EXPECT_FALSE(llvm::is_contained(t.encode("ab[PAD4]"), 4));
  v.unknown = -1;
  EXPECT_NE(errorOf([&] { Tokenizer::fromGguf(v, "x.gguf"); }).find("pieces 3 and 4 both stand for unknown text"),
            std::string::npos)
      << "nothing says which";
}

TEST(TokenizerFiles, WhatEndsADocumentMayBeSaidBeside) {
  const std::filesystem::path dir =
      std::filesystem::path(testing::TempDir()) / fmt::format("gptc-beside-{}", ::getpid());
  std::filesystem::create_directories(dir);
  const auto gone = llvm::make_scope_exit([&] { std::filesystem::remove_all(dir); });
  auto write = [&](const char *name, const nlohmann::json &j) { std::ofstream(dir / name) << j.dump(); };
  auto j = parseJson(readInput(folder + "gpt2.json", "tokenizer"));
  j["added_tokens"] = {{{"id", 5000}, {"content", "<stop>"}, {"special", true}}};
  write("tokenizer.json", j);
  auto end = [&] { return Tokenizer::load((dir / "tokenizer.json").string()).endOfText(); };
  EXPECT_EQ(end(), -1);
  write("tokenizer_config.json", {{"eos_token", "<stop>"}});
  EXPECT_EQ(end(), 5000);
  write("tokenizer_config.json", {{"eos_token", {{"content", "<stop>"}}}});
  EXPECT_EQ(end(), 5000);
  for (const nlohmann::json &none : {nlohmann::json{{"eos_token", nullptr}}, nlohmann::json{{"eos_token", "<go>"}},
                                     nlohmann::json{{"eos_token", 3}}, nlohmann::json::array()}) {
    write("tokenizer_config.json", none);
    EXPECT_EQ(end(), -1) << none;
  }
  // A usual name is what ends a document even where turns of a dialogue end otherwise.
  j["added_tokens"].push_back({{"id", 5001}, {"content", "</s>"}, {"special", true}});
  write("tokenizer.json", j);
  write("tokenizer_config.json", {{"eos_token", "<stop>"}});
  EXPECT_EQ(end(), 5001);
}

TEST(TokenizerFiles, AGgufFileIsATokenizer) {
  // SentencePiece's pieces and scores.
  const std::string file = folder + "sp-bpe-llama.model", content = readInput(file, "tokenizer");
  const SentencePieceModel m = parseSentencePiece(content, file);
  GgufVocabulary v;
  v.model = "llama";
  for (size_t i = 0; i < m.pieces.size(); ++i) {
    v.tokens.push_back(m.pieces[i].text);
    v.scores.push_back(m.pieces[i].score);
    v.types.push_back(m.pieces[i].type);
    if (m.pieces[i].type == SentencePieceModel::unknown)
      v.unknown = int64_t(i);
    else if (m.pieces[i].type == SentencePieceModel::control)
      (m.pieces[i].text == m.bos ? v.bos : v.eos) = int64_t(i);
  }
  v.addSpacePrefix = m.addSpace;
  const Tokenizer t = loadedFromGguf(&v), own = Tokenizer::load(file);
  EXPECT_EQ(t.endOfText(), v.eos);
  for (const auto &text : goldens()["texts"])
    EXPECT_EQ(t.encode(text.get<std::string>()), own.encode(text.get<std::string>())) << text;
  try {
    loadedFromGguf(nullptr);
    FAIL();
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::DataInvalid);
    EXPECT_NE(e.diagnostics[0].message.find("has no vocabulary"), std::string::npos) << e.what();
  }
}

TEST(TokenizerFiles, ModelsOfSentencePieceAreWrittenAsJson) {
  auto modelOf = [](const std::string &name) {
    return parseSentencePiece(readInput(folder + name + ".model", "tokenizer"), name);
  };
  auto expectSame = [](const SentencePieceModel &m, const std::string &what) {
    constexpr auto unknown = SentencePieceModel::unknown;
    const bool users = llvm::any_of(m.pieces, [](const auto &p) { return p.type == SentencePieceModel::userDefined; });
    const std::string json = sentencePieceJson(m, true, false);
    ASSERT_FALSE(json.empty()) << what;
    const Tokenizer own = sentencePieceTokenizer(m, {"tokenizer.model", writeSentencePiece(m)}, what, true, false),
                    t = Tokenizer::fromJson(json, what);
    EXPECT_EQ(t.vocabSize(), own.vocabSize());
    auto texts = goldens()["texts"].get<std::vector<std::string>>();
    texts.insert(texts.end(), {"  two  spaces   ", " ", "", "a wall\nof  the boat 12 boats<|end|> the"});
    for (const std::string &text : texts) {
      if (text.find("<s>") != std::string::npos)
        continue;  // for `tokenizers` every piece of Unigram is text, control tokens too
      if (users && m.addSpace && (text.starts_with(' ') || text.starts_with("\u2581")))
        continue;  // and its step that adds a space only to the first text adds none to these
      EXPECT_EQ(t.encode(text), own.encode(text)) << what << ": \"" << text << '"';
      EXPECT_EQ(t.encode(text, {.addSpecial = true}), own.encode(text, {.addSpecial = true})) << what << ": " << text;
      const Ids tokens = t.encode(text);
      if (llvm::none_of(tokens, [&](int32_t id) { return m.pieces[size_t(id)].type == unknown; })) {
        EXPECT_EQ(t.decode(tokens), own.decode(tokens)) << what << ": " << text;
      }
    }
  };
  for (const char *name : {"sp-bpe-llama", "sp-unigram"})
    expectSame(modelOf(name), name);
  SentencePieceModel m = modelOf("sp-bpe");
  EXPECT_EQ(sentencePieceJson(m, true, false), "") << "a piece with a space that a user defined";
  for (auto &p : m.pieces)
    if (p.text == "\u2581the")
      p.type = SentencePieceModel::normal;
  m.addSpace = false;
  EXPECT_EQ(sentencePieceJson(m, true, false), "") << "spaces beside what a user defined are removed";
  m.addSpace = true;
  m.removeExtraSpaces = false;
  expectSame(m, "sp-bpe, pieces that users defined");
  m.addSpace = false;
  expectSame(m, "sp-bpe, no space added");
  EXPECT_EQ(sentencePieceJson(modelOf("sp-suffix"), true, false), "");
  m = modelOf("sp-unigram-bytes");
  m.removeExtraSpaces = false;
  expectSame(m, "sp-unigram-bytes");
  m.pieces.back().type = SentencePieceModel::unused;
  EXPECT_EQ(sentencePieceJson(m, true, false), "");
}

/// A tokenizer of words "a" and "b" with these parts.
Tokenizer wordsWith(const nlohmann::json &parts) {
  nlohmann::json j = {
      {"model", {{"type", "WordLevel"}, {"vocab", {{"?", 0}, {"a", 1}, {"b", 2}}}, {"unk_token", "?"}}}};
  j.merge_patch(parts);
  return Tokenizer::fromJson(j.dump(), "t.json");
}

TEST(TokenizerFiles, ATextIsNotCutWhereANormalizerMayChangeIt) {
  auto cut = [](const std::string &from, const std::string &to) {
    return wordsWith({{"pre_tokenizer", {{"type", "Whitespace"}}},
                      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}}}})
        .cut();
  };
  for (const auto &[from, to] : {std::pair("\n", ""), {"\nb", "c"}, {"a", "."}, {"ba", ""}, {"a\n", "a"}, {" b", "b"}})
    EXPECT_EQ(cut(from, to), CutPoint::nowhere) << from;
  for (const auto &[from, to] : {std::pair("``", "\""), {"a", "b"}, {" ", "\u2581"}})
    EXPECT_EQ(cut(from, to), CutPoint::beforeLineFeed) << from;
}

TEST(TokenizerFiles, TokensOfSpaceAreFoundAsByTheirOwnLibrary) {
  // Ids as `tokenizers` 0.23.3 gives them.
  auto ids = [](bool left, bool right, const std::string &text) {
    return wordsWith({{"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", ""}}}, {"behavior", "Isolated"}}},
                      {"added_tokens",
                       {{{"id", 3},
                         {"content", "  "},
                         {"lstrip", left},
                         {"rstrip", right},
                         {"normalized", false},
                         {"special", false}}}}})
        .encode(text);
  };
  const nlohmann::json nothing = {{"String", ""}};
  EXPECT_EQ(wordsWith({{"pre_tokenizer", {{"type", "Split"}, {"pattern", nothing}, {"behavior", "Isolated"}}},
                       {"normalizer", {{"type", "Replace"}, {"pattern", nothing}, {"content", "b"}}}})
                .encode("aa"),
            (Ids{2, 1, 2, 1, 2}))
      << "nothing is found between all characters";
  EXPECT_EQ(ids(true, true, "a    b"), (Ids{1, 3, 2}));
  EXPECT_EQ(ids(true, true, "a     b"), (Ids{1, 3, 2}));
  EXPECT_EQ(ids(false, true, "a     b"), (Ids{1, 3, 3, 2}));
  EXPECT_EQ(ids(true, false, "a     b"), (Ids{1, 3, 3, 0, 2}));
}

/// Each bound of one search by itself: what exceeds it exceeds no other.
TEST(TokenizerFiles, AnExpressionWithoutEndIsAnError) {
  auto said = [](const char *pattern, const std::string &text) {
    return errorOf([&] { Regex(pattern, "t.json").find(text, 0); });
  };
  const std::string before = "302 t.json: its regular expression takes too long or too much memory: ";
  EXPECT_EQ(said("(a|a)*b", std::string(60, 'a') + "cb"), before + "retry-limit-in-match over");
  // No place takes more than 60,000 steps, and all together hundreds of millions.
  EXPECT_EQ(said("(?:a|x)*[bc]d", std::string(20'000, 'a') + "b"), before + "retry-limit-in-search over");
  // Matches at once, without a step back; each letter takes an entry of the stack.
  EXPECT_EQ(said("(?:a|b)*", std::string(1 << 22, 'a')), before + "match-stack limit over");
  EXPECT_EQ(said("(?:a|b)*", std::string(1 << 18, 'a')), "");
}

TEST(TokenizerFiles, TheSearchesInATextAreBoundedTogether) {
  auto split = [](const char *pattern) {
    return nlohmann::json{
        {"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}}}};
  };
  const std::string text(3000, 'a');
  const auto start = std::chrono::steady_clock::now();
  for (const char *slow : {"(?!.*.*b).", "(?:(?=.*).)*z|a"})
    EXPECT_NE(errorOf([&] { wordsWith(split(slow)).encode(text); }).find("too long"), std::string::npos) << slow;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  // A usual expression takes many steps at no place.
  const std::string longer = std::string(1 << 20, 'a') + std::string(1 << 20, ' ') + std::string(1 << 20, 'b');
  EXPECT_EQ(errorOf([&] { wordsWith(split("\\s*[\\r\\n]+|\\s+(?!\\S)|\\w+")).encode(longer); }), "");
}

TEST(TokenizerFiles, ANormalizerMakesATextLongerWithinABound) {
  auto steps = [](int n, const std::string &to) {
    nlohmann::json all = nlohmann::json::array();
    for (int i = 0; i < n; ++i)
      all.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", to}});
    return nlohmann::json{{"normalizer", {{"type", "Sequence"}, {"normalizers", all}}}};
  };
  const std::string text(3000, 'a'), tenfold(10, 'a');
  EXPECT_EQ(errorOf([&] { wordsWith(steps(1, tenfold)).encode(text); }), "");
  const std::string said = errorOf([&] { wordsWith(steps(9, tenfold)).encode(text); });
  EXPECT_TRUE(said.starts_with("404 t.json: normalizer.normalizers[1]: this step makes more than")) << said;
  EXPECT_NE(errorOf([&] { wordsWith(steps(1, std::string(1 << 20, 'b'))).encode(text); }), "") << "4 GB otherwise";
}

TEST(TokenizerFiles, AFileWithoutEndIsNotReadWhole) {
  const std::string file = testing::TempDir() + fmt::format("gptc-long-{}.json", ::getpid());
  std::ofstream(file).put('{');
  std::filesystem::resize_file(file, int64_t(3) << 30);  // takes no room
  const auto gone = llvm::make_scope_exit([&] { std::filesystem::remove(file); });
  EXPECT_TRUE(llvm::StringRef(errorOf([&] { Tokenizer::load(file); })).starts_with("404 tokenizer " + file));
}

/// "[2] A:0 [3] B:1": the parts of a sequence, tokens in brackets, and types that are not 0.
std::string sequenceOf(const Tokenizer &t, int texts) {
  std::string said;
  for (const SequencePart &s : t.sequenceOf(texts)) {
    said += s.text < 0 ? fmt::format("{}[{}]", said.empty() ? "" : " ", s.token)
                       : fmt::format("{}{}", said.empty() ? "" : " ", s.text ? "B" : "A");
    if (s.type)
      said += fmt::format(":{}", s.type);
  }
  return said;
}

TEST(TokenizerFiles, PostProcessorsSayHowTextsAreRead) {
  EXPECT_EQ(sequenceOf(wordsWith(nlohmann::json::object()), 1), "A");
  EXPECT_EQ(sequenceOf(wordsWith(nlohmann::json::object()), 2), "A B:1");
  EXPECT_EQ(sequenceOf(wordsWith({{"post_processor", {{"type", "ByteLevel"}}}}), 2), "A B:1");
  EXPECT_EQ(sequenceOf(Tokenizer::bytes(), 2), "");
  auto processed = [](const nlohmann::json &post, int texts) {
    return sequenceOf(wordsWith({{"post_processor", post}}), texts);
  };
  auto of = [](const char *type) { return nlohmann::json{{"type", type}, {"sep", {"b", 2}}, {"cls", {"a", 1}}}; };
  EXPECT_EQ(processed(of("BertProcessing"), 1), "[1] A [2]");
  EXPECT_EQ(processed(of("BertProcessing"), 2), "[1] A [2] B:1 [2]:1");
  EXPECT_EQ(processed(of("RobertaProcessing"), 1), "[1] A [2]");
  EXPECT_EQ(processed(of("RobertaProcessing"), 2), "[1] A [2] [2] B [2]");

  auto text = [](const char *id, int type) { return nlohmann::json{{"Sequence", {{"id", id}, {"type_id", type}}}}; };
  auto token = [](const char *id, int type) {
    return nlohmann::json{{"SpecialToken", {{"id", id}, {"type_id", type}}}};
  };
  auto with = [&](const nlohmann::json &single, const nlohmann::json &pair) {
    return nlohmann::json{
        {"type", "TemplateProcessing"},
        {"single", single},
        {"pair", pair},
        {"special_tokens", {{"a", {{"id", "a"}, {"ids", {1}}}}, {"b", {{"id", "b"}, {"ids", {2, 1}}}}}}};
  };
  using Parts = nlohmann::json::array_t;
  const nlohmann::json single = Parts{token("a", 3), text("A", 2)},
                       pair = Parts{text("B", 1), token("b", 4), text("A", 0)};
  EXPECT_EQ(processed(with(single, pair), 1), "[1]:3 A:2");
  EXPECT_EQ(processed(with(single, pair), 2), "B:1 [2]:4 [1]:4 A");
  // A pair of which a text is missing, or there twice, or none.
  for (const nlohmann::json &wrong : {nlohmann::json(Parts{text("A", 0)}), nlohmann::json(nullptr),
                                      nlohmann::json(Parts{text("A", 0), text("B", 0), text("A", 0)})})
    EXPECT_EQ(processed(with(single, wrong), 2), "") << wrong;
  // One around another; how a pair is read then is not known.
  const nlohmann::json both = {{"type", "Sequence"}, {"processors", Parts{with(single, pair), of("BertProcessing")}}};
  EXPECT_EQ(processed(both, 1), "[1] [1] A [2]");
  EXPECT_EQ(processed(both, 2), "");
  const Tokenizer t = wordsWith({{"post_processor", both}, {"pre_tokenizer", {{"type", "Whitespace"}}}});
  EXPECT_EQ(t.encode("b", {.addSpecial = true}), (Ids{1, 1, 2, 2}));
  for (const nlohmann::json &wrong : {nlohmann::json(Parts{token("c", 0), text("A", 0), text("B", 0)}),
                                      nlohmann::json(Parts{text("A", 0), text("B", -1)}), nlohmann::json(Parts{3})})
    EXPECT_TRUE(llvm::StringRef(errorOf([&] { processed(with(single, wrong), 2); })).starts_with("302 ")) << wrong;
}

/// The places at which two files differ: "/model/unk_token".
struct Changes {
  std::vector<std::string> all, ofType;  // null is of any type, and a whole number may stand for a fraction
};

void compare(const nlohmann::json &a, const nlohmann::json &b, const std::string &path, Changes &found) {
  if (a == b)
    return;
  if (a.is_object() && b.is_object()) {
    for (const auto &[name, value] : a.items())
      compare(value, part(b, name.c_str()), path + "/" + name, found);
    for (const auto &[name, value] : b.items())
      if (!a.contains(name))
        found.all.push_back(path + "/" + name);
    return;
  }
  found.all.push_back(path);
  const bool fits = a.is_number() && b.is_number() && (a.is_number_float() || b.is_number_integer());
  if (!a.is_null() && !b.is_null() && a.type() != b.type() && !fits)
    found.ofType.push_back(path);
}

/// Whether no id depends on the value there.
bool isUnread(llvm::StringRef path) {
  for (const char *whole : {"/decoder", "/truncation", "/padding", "/version"})
    if (path == whole || path.starts_with(std::string(whole) + "/"))
      return true;
  return path.ends_with("/trim_offsets");
}

constexpr EncodeOptions kWithSpecial = {.parseSpecial = true, .addSpecial = true};
const char *const kTexts[] = {"The boats — it's 12 o'clock.\n\n<s> x", "河の水は静か é \xf0\x9f\x98\x80"};

/// A file that is changed somewhere is refused with a code and its name, or is another valid tokenizer: values of other
/// types are refused, and what is not read changes no id.
void expectCodedErrors(const std::string &content, std::mt19937 &random, bool json) {
  std::string changed = content;
  auto place = [&] { return random() % changed.size(); };
  const char *const words[] = {"null", "-1",   "1e999", "99999999999999999999", "{}",
                               "[]",   "\"\"", "true",  "\"Sequence\"",         "\xff"};
  switch (random() % 5) {
  case 0:
    changed[place()] = char(random());
    break;
  case 1:
    changed.resize(place());
    break;
  case 2:
    changed.erase(place(), 1 + random() % 20);
    break;
  case 3:
    changed.insert(place(), changed.substr(place(), 1 + random() % 30));
    break;
  default:
    if (json) {  // another value after some colon
      const size_t at = changed.find(':', place());
      const size_t end = at == std::string::npos ? at : changed.find_first_of(",}]", at);
      if (end != std::string::npos)
        changed.replace(at + 1, end - at - 1, words[random() % std::size(words)]);
    } else {
      for (int i = 0; i < 4; ++i)
        changed[place()] = char(random());
    }
  }
  const std::string file = json ? "t.json" : "t.model";
  auto loaded = [&](const std::string &text) {
    return json ? Tokenizer::fromJson(text, file) : Tokenizer::fromSentencePiece(text, file);
  };
  const Tokenizer whole = loaded(content);
  bool isLoaded = false;
  try {
    const Tokenizer t = loaded(changed);
    isLoaded = true;
    Changes found;
    if (json)
      compare(parseJson(content), parseJson(changed), "", found);
    else if (writeSentencePiece(parseSentencePiece(changed, file)) !=
             writeSentencePiece(parseSentencePiece(content, file)))
      found.all.push_back("/pieces");
    EXPECT_EQ(found.ofType, std::vector<std::string>()) << "and it loads";
    for (const char *text : kTexts) {
      const Ids ids = t.encode(text, kWithSpecial);
      t.decode(ids);
      if (llvm::all_of(found.all, isUnread)) {
        EXPECT_EQ(ids, whole.encode(text, kWithSpecial)) << fmt::format("{}", fmt::join(found.all, ", "));
      }
    }
  } catch (const UserError &e) {
    EXPECT_NE(e.diagnostics[0].code, ErrorCode::Internal);
    // A text of which the vocabulary lacks a byte is no fault of the file.
    EXPECT_TRUE(isLoaded || e.diagnostics[0].message.find(file) != std::string::npos) << e.what();
    EXPECT_FALSE(e.diagnostics[0].help.empty()) << e.what();
  }
}

TEST(TokenizerFiles, DamagedOnesAreRefusedWithACode) {
  std::mt19937 random(21);
  int tried = 0;
  for (const auto &g : goldens()["tokenizers"]) {
    const std::string file = g["file"], content = readInput(folder + file, "tokenizer");
    const bool json = file.ends_with(".json");
    for (int i = 0; i < (json ? 30 : 100); ++i, ++tried) {
      SCOPED_TRACE(fmt::format("{}, change {}", file, i));
      expectCodedErrors(content, random, json);
    }
  }
  EXPECT_GE(tried, 1000);
}

/// The places in a tokenizer.json below which types are fixed: all but the entries of the vocabulary, of which there is
/// a test below.
void placesIn(const nlohmann::json &j, const std::string &path, std::vector<std::string> &found) {
  if (!path.empty())
    found.push_back(path);
  if (path == "/model/vocab" || path == "/model/merges" || !j.is_structured())
    return;
  for (const auto &[name, value] : j.items()) {
    std::string token = name;  // of a JSON pointer
    for (const auto &[from, to] : {std::pair("~", "~0"), {"/", "~1"}})
      for (size_t at = 0; (at = token.find(from, at)) != std::string::npos; at += 2)
        token.replace(at, 1, to);
    placesIn(value, path + "/" + token, found);
  }
}

TEST(TokenizerFiles, ValuesOfOtherTypesAreRefusedWithTheirKey) {
  using nlohmann::json;
  int tried = 0;
  for (const auto &g : goldens()["tokenizers"]) {
    const std::string file = g["file"];
    if (!file.ends_with(".json"))
      continue;
    const json whole = parseJson(readInput(folder + file, "tokenizer"));
    std::vector<std::string> places;
    placesIn(whole, "", places);
    for (const std::string &place : places) {
      const json::json_pointer at(place);
      const json &was = whole.at(at);
      // The innermost names: "tokens" of /post_processor/special_tokens/<s>/tokens/0.
      std::vector<std::string> names;
      for (json::json_pointer p = at; !p.empty(); p = p.parent_pointer())
        if (whole.at(p.parent_pointer()).is_object())
          names.push_back(p.back());
      for (const json &other : {json(3), json(1.5), json("x"), json(true), json::array(), json::object()}) {
        if (was.is_null() || was.type() == other.type() || (was.is_number_integer() && other.is_number_integer()))
          continue;
        json changed = whole;
        changed[at] = other;
        const std::string said = errorOf([&] { Tokenizer::fromJson(changed.dump(), "t.json"); });
        const bool named = llvm::any_of(llvm::ArrayRef(names).take_front(2),
                                        [&](const std::string &name) { return said.find(name) != std::string::npos; });
        EXPECT_TRUE(named && said.find("t.json") != std::string::npos)
            << file << " " << place << " = " << other << ": " << (said.empty() ? "it loads" : said);
        ++tried;
      }
    }
  }
  EXPECT_GE(tried, 1000);
}

TEST(TokenizerFiles, ValuesThatNothingKnowsAreRefusedWithTheirKey) {
  using nlohmann::json;
  auto refused = [](const json &with, const std::string &wanted) {
    const std::string said = errorOf([&] { wordsWith(with); });
    EXPECT_NE(said.find(wanted), std::string::npos) << with << ": " << said;
  };
  for (const char *step : {"decoder", "pre_tokenizer"})
    for (const json &scheme : {json("Always"), json(""), json("seldom")})
      refused({{step, {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", scheme}}}},
              fmt::format("{}.prepend_scheme is {}", step, scheme.dump()));
  // The field that `tokenizers` wants: without it a control token would be one that stands in texts.
  refused({{"added_tokens", {{{"id", 3}, {"content", "<x>"}}}}}, "added_tokens[0].special is neither true nor false");
  const json text = {{"Sequence", {{"id", "A"}}}}, other = {{"Sequence", {{"id", "C"}}}};
  for (const char *which : {"single", "pair"}) {
    json post = {{"type", "TemplateProcessing"}, {"single", json::array({text})}};
    post[which] = json::array({text, other});
    refused({{"post_processor", post}}, fmt::format("post_processor.{}[1].Sequence.id is \"C\"", which));
  }
  refused({{"version", 1}}, "version is no text");
  for (const char *name : {"truncation", "padding"})
    for (const json &value : {json(3), json("x"), json::array(), json(true)})
      refused({{name, value}}, fmt::format("{} is neither null nor an object", name));
  for (const json &value : {json(nullptr), json::object()})
    EXPECT_EQ(errorOf([&] { wordsWith({{"truncation", value}, {"padding", value}}); }), "") << value;
  for (const json &id : {json("2"), json(2.5), json(true), json::array()})
    refused({{"model", {{"type", "WordLevel"}, {"vocab", {{"a", id}}}}}}, "the id of \"a\" is no token number");
}

TEST(TokenizerFiles, MessagesStayShort) {
  const std::string type(100000, 'x');
  for (const char *step : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    const std::string said = errorOf([&] { wordsWith({{step, {{"type", type}}}}); });
    EXPECT_LT(said.size(), 500u) << step;
    EXPECT_NE(said.find(std::string(step) + " of type \"xxx"), std::string::npos) << said.substr(0, 500);
  }
  const std::string said = errorOf([&] { wordsWith({{"model", {{"type", type}, {"vocab", {{"a", 0}}}}}}); });
  EXPECT_LT(said.size(), 500u);
  EXPECT_NE(said.find("a model of type \"xxx"), std::string::npos) << said.substr(0, 500);
}

}  // namespace
