// Vocabularies of SentencePiece's BPE on their way into GGUF and out of it. tokenizers/sp-bpe-llama.model is
// SentencePiece's own, and tokenizers/llama.json of `tokenizers`, which also made the ids (tokenizers/make.py).
#include "frontends/gguf/vocabulary.h"
#include "frontends/hf_folder.h"
#include "frontends/tokenizer/sentencepiece.h"
#include "frontends/tokenizer/tokenizer.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/gguf/gguf_file.h"
#include "support/json.h"
#include "tests/support/oracles.h"

#include "llvm/ADT/STLExtras.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <unistd.h>

using namespace gptc;

namespace {

using json = nlohmann::json;
using Ids = std::vector<int32_t>;
using Texts = std::vector<std::string>;

const std::string folder = GPTC_SOURCE_DIR "/tests/unit/frontends/tokenizers/";
constexpr int64_t kPieces = 400;  // of sp-bpe-llama.model

Texts someTexts() {
  Texts texts = parseJson(readInput(folder + "goldens.json", "goldens"))["texts"].get<Texts>();
  texts.insert(texts.end(), {"  two  spaces   ", "never over ver rev", "▁ver▁", "<s>a</s><unk>", "the <0x41> boats☃"});
  return texts;
}

struct GgufPieces : testing::Test {
  std::filesystem::path dir;
  void SetUp() override {
    dir = std::filesystem::path(testing::TempDir()) / ("gptc-gguf-pieces-" + std::to_string(::getpid()));
    std::filesystem::create_directories(dir);
  }
  void TearDown() override { std::filesystem::remove_all(dir); }

  /// A file with this vocabulary.
  std::string written(const GgufVocabulary &v, const char *name = "x.gguf") {
    GgufKeys keys = {{"general.architecture", std::string("llama")}};
    addVocabulary(keys, &v);
    GgufWriter((dir / name).string(), keys, {}).finish();
    return (dir / name).string();
  }

  /// What the folder of a model of `size` tokens has of a tokenizer.
  static std::map<std::string, std::string> described(const std::string &file, int64_t size) {
    ModelConfig m;
    m.nLayer = 2, m.nHead = 4, m.nKvHead = 2, m.nEmbd = 32, m.ffnDim = 96, m.vocabSize = size, m.blockSize = 16;
    m.norm = Norm::rmsnorm, m.position = Position::rope, m.activation = Activation::swiglu;
    m.bias = m.tieEmbeddings = false;
    return describeFolder(m, file).files;
  }

  /// Out of a GGUF file into a folder, and from there into another GGUF file.
  static GgufVocabulary returned(const std::string &file, int64_t size) {
    return vocabularyOf(described(file, size), file, size);
  }

  static json base() { return parseJson(described(folder + "sp-bpe-llama.model", kPieces).at("tokenizer.json")); }

  /// "" if it becomes a vocabulary, else the error.
  static std::string problemOf(const json &j, int64_t size = kPieces) {
    try {
      vocabularyOf({{"tokenizer.json", j.dump()}, {"tokenizer_config.json", R"({"eos_token": "</s>"})"}}, "T", size);
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::NotBuiltYet) << e.what();
      EXPECT_FALSE(e.diagnostics[0].help.empty());
      EXPECT_EQ(e.diagnostics[0].message.rfind("T has ", 0), 0u) << e.what();
      return e.diagnostics[0].message;
    }
    return "";
  }
};

/// The pieces of sp-bpe-llama.model, and keys that say otherwise than llama.cpp's defaults.
GgufVocabulary llama() {
  const std::string file = folder + "sp-bpe-llama.model";
  const SentencePieceModel m = parseSentencePiece(readInput(file, "tokenizer"), file);
  GgufVocabulary v;
  v.model = "llama";
  v.pre = "default";
  for (const SentencePieceModel::Piece &p : m.pieces) {
    v.tokens.push_back(p.text);
    v.scores.push_back(p.score);
    v.types.push_back(p.type);
  }
  for (const char *control : {"<|start|>", "<|end|>"}) {
    v.tokens.push_back(control);
    v.scores.push_back(0);
    v.types.push_back(GgufVocabulary::control);
  }
  v.unknown = 0, v.bos = 1, v.eos = 2, v.eot = kPieces + 1, v.pad = kPieces;
  v.addBos = true;
  v.addSpacePrefix = true;
  v.chatTemplate = "{{ messages }}";
  return v;
}

void expectSame(const GgufVocabulary &a, const GgufVocabulary &b) {
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.pre, b.pre);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.scores, b.scores);
  EXPECT_EQ(a.types, b.types);
  EXPECT_EQ(a.merges, b.merges);
  EXPECT_EQ(std::tuple(a.unknown, a.bos, a.eos, a.eot, a.pad), std::tuple(b.unknown, b.bos, b.eos, b.eot, b.pad));
  EXPECT_EQ(std::tuple(a.addBos, a.addEos, a.addSpacePrefix), std::tuple(b.addBos, b.addEos, b.addSpacePrefix));
  EXPECT_EQ(a.chatTemplate, b.chatTemplate);
}

void expectSameIds(const Tokenizer &a, const Tokenizer &b) {
  for (const std::string &text : someTexts()) {
    EXPECT_EQ(a.encode(text), b.encode(text)) << '"' << text << '"';
    EXPECT_EQ(a.encode(text, {.addSpecial = true}), b.encode(text, {.addSpecial = true})) << '"' << text << '"';
  }
}

TEST_F(GgufPieces, ReturnAsTheyCame) {
  const GgufVocabulary v = llama();
  const std::string file = written(v);
  const GgufVocabulary back = returned(file, int64_t(v.tokens.size()));
  expectSame(back, v);
  const Tokenizer t = Tokenizer::load(file);
  expectSameIds(Tokenizer::load(written(back, "back.gguf")), t);
  expectSameIds(Tokenizer::fromJson(described(file, kPieces + 2).at("tokenizer.json"), "x"), t);
}

TEST_F(GgufPieces, OtherFlagsAndKindsReturnToo) {
  GgufVocabulary v = llama();
  v.addBos = v.addSpacePrefix = false;
  v.addEos = true;
  v.types[kPieces] = GgufVocabulary::userDefined;
  v.pad = -1;
  const std::string file = written(v);
  const GgufVocabulary back = returned(file, kPieces + 2);
  expectSame(back, v);
  expectSameIds(Tokenizer::load(written(back, "back.gguf")), Tokenizer::load(file));
}

TEST_F(GgufPieces, ReturnFromAModelThatIsFilledUp) {
  GgufVocabulary v = llama();
  const GgufVocabulary filled = returned(written(v), kPieces + 5);
  for (int id = kPieces + 2; id < kPieces + 5; ++id) {
    v.tokens.push_back(fmt::format("[PAD{}]", id));
    v.scores.push_back(0);
    v.types.push_back(GgufVocabulary::unused);
  }
  expectSame(filled, v);
  const std::string file = written(filled);
  expectSame(returned(file, kPieces + 5), v);
  EXPECT_EQ(Tokenizer::fromJson(described(file, kPieces + 5).at("tokenizer.json"), "x").vocabSize(), kPieces + 2);
  // An unused piece that is joined, and taken apart again, fits into no tokenizer.json.
  for (const char *joined : {"verboat", "☃"}) {
    v.tokens.back() = joined;
    EXPECT_FALSE(described(written(v), kPieces + 5).count("tokenizer.json")) << joined;
  }
}

/// Ids are those of `tokenizers`.
TEST_F(GgufPieces, OfATokenizerJsonOfOthersGiveItsIds) {
  const std::string text = readInput(folder + "llama.json", "tokenizer");
  const GgufVocabulary v = vocabularyOf(
      {{"tokenizer.json", text}, {"tokenizer_config.json", R"({"eos_token": "</s>", "unk_token": "<unk>"})"}}, "x",
      int64_t(parseJson(text)["model"]["vocab"].size()));
  EXPECT_EQ(v.model, "llama");
  EXPECT_EQ(std::tuple(v.unknown, v.bos, v.eos), std::tuple(0, 1, 2));
  EXPECT_TRUE(v.addBos && v.addSpacePrefix && !v.addEos);
  EXPECT_EQ(v.types[0], GgufVocabulary::unknownToken);
  EXPECT_EQ(v.types[258], GgufVocabulary::byte);
  EXPECT_EQ(v.types[259], GgufVocabulary::normal);
  const Tokenizer t = Tokenizer::load(written(v));
  const json goldens = parseJson(readInput(folder + "goldens.json", "goldens"));
  int compared = 0;
  for (const json &g : goldens["tokenizers"])
    for (size_t i = 0; g["file"] == "llama.json" && i < g["plain"].size(); ++i, ++compared)
      EXPECT_EQ(t.encode(goldens["texts"][i].get<std::string>()), g["plain"][i].get<Ids>()) << goldens["texts"][i];
  EXPECT_GE(compared, 10);
  // Where nothing ends a text, a token that the model has beside them does; what begins one stays.
  const int64_t size = int64_t(v.tokens.size());
  const GgufVocabulary longer = vocabularyOf({{"tokenizer.json", text}}, "x", size + 1);
  EXPECT_EQ(std::tuple(longer.bos, longer.eos), std::tuple(1, size));
  EXPECT_THROW(vocabularyOf({{"tokenizer.json", text}}, "x", size), UserError);
}

TEST_F(GgufPieces, MergesThatNoScoresSayAreRefused) {
  const json j = base();
  EXPECT_EQ(problemOf(j), "");
  // "ver" is made of "v" and "er", and of "ve" and "r".
  const json &merges = j["model"]["merges"];
  size_t at = 0;
  while (at < merges.size() && merges[at] != json{"v", "er"})
    ++at;
  ASSERT_LT(at + 2, merges.size());
  ASSERT_EQ(merges[at + 1], (json{"ve", "r"}));
  auto changed = [&](auto change) {
    json other = j;
    change(other["model"]["merges"]);
    return problemOf(other);
  };
  auto swap = [](json &all, size_t a, size_t b) { std::swap(all[a], all[b]); };
  EXPECT_EQ(changed([&](json &all) { swap(all, at, at + 1); }), "") << "of one token";
  EXPECT_EQ(changed([&](json &all) {
              for (json &m : all)
                m = m[0].get<std::string>() + " " + m[1].get<std::string>();
            }),
            "")
      << "as older files have them";
  const std::string no = "merges that no scores say";
  EXPECT_NE(changed([&](json &all) { swap(all, at + 1, at + 2); }).find(no), std::string::npos) << "apart";
  EXPECT_NE(changed([&](json &all) { all.erase(at); }).find(no + ", at the token \"ver\""), std::string::npos);
  EXPECT_NE(changed([&](json &all) { all.erase(all.size() - 1); }).find(no), std::string::npos);
  EXPECT_NE(changed([&](json &all) { all.push_back(all[0]); }).find(no), std::string::npos) << "twice";
  // What comes first may come later: it is another vocabulary.
  json later = j;
  swap(later["model"]["merges"], 0, 3);
  const auto scoresOf = [](const json &of) {
    return vocabularyOf({{"tokenizer.json", of.dump()}}, "T", kPieces + 1).scores;
  };
  EXPECT_EQ(problemOf(later), "");
  EXPECT_NE(scoresOf(later), scoresOf(j));
}

/// llama.cpp joins whatever is a token, where a BPE has no merge.
TEST_F(GgufPieces, TokensThatComeTogetherWithoutAMergeAreRefused) {
  const json j = base();
  auto with = [&](const std::string &token) {
    json other = j;
    other["model"]["vocab"][token] = kPieces;
    return problemOf(other, kPieces + 1);
  };
  EXPECT_EQ(with("☃☃☃"), "") << "whose halves never are";
  EXPECT_EQ(with("☃"), "");
  EXPECT_NE(with("boat☃").find("\"boat☃\", which llama.cpp makes of \"boat\" and \"☃\""), std::string::npos);
  EXPECT_NE(with("boatboat").find("merges that no scores say"), std::string::npos);
  auto added = [&](const std::string &token, bool special) {
    json other = j;
    other["added_tokens"].push_back({{"id", kPieces}, {"content", token}, {"special", special}, {"normalized", false}});
    return problemOf(other, kPieces + 1);
  };
  EXPECT_EQ(added("<boat>", true), "");
  EXPECT_NE(added("boatboat", true).find("\"boatboat\", which llama.cpp makes"), std::string::npos);
  EXPECT_NE(added("☃", true).find("which is one character"), std::string::npos);
  EXPECT_EQ(added("boatboat", false), "") << "found before";
  EXPECT_NE(added("a▁b", false).find("does not come back"), std::string::npos);
}

TEST_F(GgufPieces, OtherTokenizersOfCharactersAreRefused) {
  const json j = base();
  auto said = [&](const json &changes) {
    json other = j;
    other.merge_patch(changes);
    return problemOf(other);
  };
  auto expectRefused = [&](const json &changes, const std::string &words) {
    EXPECT_NE(said(changes).find(words), std::string::npos) << changes << ": " << said(changes);
  };
  const std::string texts = "splits or changes texts", mark = "\u2581";
  const json marks = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", mark}},
             prepends = {{"type", "Prepend"}, {"prepend", mark}};
  auto steps = [](const std::vector<json> &all) {
    return json{{"normalizer", {{"type", "Sequence"}, {"normalizers", all}}}};
  };
  EXPECT_EQ(said(steps({prepends, marks})), "");
  expectRefused(steps({prepends}), texts);
  expectRefused(steps({prepends, prepends, marks}), texts);
  const json form = {{"type", "NFKC"}}, letter = {{"type", "Prepend"}, {"prepend", "x"}},
             regex = {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", mark}};
  expectRefused(steps({form, marks}), texts);
  expectRefused(steps({letter, marks}), texts);
  expectRefused(steps({regex, marks}), texts);
  expectRefused({{"normalizer", nullptr}}, texts);
  expectRefused({{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", mark}, {"split", false}}}}, texts);
  expectRefused({{"pre_tokenizer", {{"type", "Digits"}, {"individual_digits", true}}}}, texts);
  expectRefused({{"model", {{"ignore_merges", true}}}}, texts);
  expectRefused({{"model", {{"byte_fallback", false}}}}, "without byte_fallback");
  expectRefused({{"model", {{"unk_token", nullptr}}}}, "without unk_token");
  expectRefused({{"model", {{"dropout", 0.1}}}}, "dropout");
  expectRefused({{"model", {{"vocab", {{"<0x41>", nullptr}}}}}}, "byte_fallback without a piece <0x41>");
  expectRefused({{"model", {{"type", "Unigram"}}}}, "a model Unigram");
}

TEST_F(GgufPieces, TheFirstSpaceIsSaid) {
  auto vocabulary = [](const json &changes, Texts &notes) {
    json other = base();
    other.merge_patch(changes);
    notes.clear();
    return vocabularyOf({{"tokenizer.json", other.dump()}, {"tokenizer_config.json", R"({"eos_token": "</s>"})"}}, "T",
                        kPieces, &notes);
  };
  Texts notes;
  EXPECT_TRUE(vocabulary(json::object(), notes).addSpacePrefix);
  EXPECT_EQ(notes, Texts{});
  const json marks = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  EXPECT_FALSE(vocabulary({{"normalizer", marks}}, notes).addSpacePrefix);
  EXPECT_EQ(notes, Texts{});
  for (const auto &[scheme, puts] : {std::pair("first", true), {"always", true}, {"never", false}}) {
    const json pre = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", false}};
    EXPECT_EQ(vocabulary({{"normalizer", nullptr}, {"pre_tokenizer", pre}}, notes).addSpacePrefix, puts) << scheme;
    EXPECT_EQ(notes.size(), size_t(puts)) << scheme;
  }
  // A token that is looked for behind the space that a normalizer puts.
  auto added = [](bool special, bool normalized) {
    return json{{"added_tokens",
                 {{{"id", 2}, {"content", "</s>"}, {"special", true}, {"normalized", false}},
                  {{"id", 1}, {"content", "<s>"}, {"special", special}, {"normalized", normalized}}}}};
  };
  vocabulary(added(false, false), notes);
  EXPECT_EQ(notes, Texts{});
  EXPECT_THROW(vocabulary(added(false, true), notes), UserError);
  vocabulary(added(true, true), notes);
  EXPECT_EQ(notes, Texts{"the control token \"<s>\" loses its normalized, for which GGUF has no key"});
}

/// llama.cpp's own texts and ids for its vocabulary of Llama 2.
TEST_F(GgufPieces, OfLlamaCppKeepItsGoldenPairs) {
  const std::string file = test::ggmlVocabularies() + "/ggml-vocab-llama-spm.gguf";
  if (!std::filesystem::exists(file))
    GTEST_SKIP() << "skipped: no " << file << " (tools/oracles brings it)";
  const auto before = readVocabulary(GgufFile(file));
  const int64_t size = int64_t(before->tokens.size());
  const GgufVocabulary back = returned(file, size);
  EXPECT_EQ(back.tokens, before->tokens);
  EXPECT_EQ(back.types, before->types);
  EXPECT_EQ(std::tuple(back.unknown, back.bos, back.eos), std::tuple(before->unknown, before->bos, before->eos));
  EXPECT_TRUE(back.addBos && back.addSpacePrefix && !back.addEos);
  const Tokenizer t = Tokenizer::load(written(back));
  const std::string texts = readInput(file + ".inp", "test"), between = "\n__ggml_vocab_test__\n";
  std::istringstream ids(readInput(file + ".out", "test"));
  int compared = 0;
  for (size_t at = 0; at <= texts.size();) {
    const size_t end = std::min(texts.find(between, at), texts.size());
    const std::string text = texts.substr(at, end - at);
    at = end + between.size();
    std::string line;
    std::getline(ids, line);
    std::istringstream words(line);
    Ids want;
    for (int32_t id; words >> id;)
      want.push_back(id);
    if (text.empty())  // which llama.cpp tells nobody about
      continue;
    ++compared;
    EXPECT_EQ(t.encode(text), want) << '"' << text << '"';
  }
  EXPECT_GE(compared, 40);
}

}  // namespace
