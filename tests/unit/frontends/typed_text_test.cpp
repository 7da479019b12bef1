// What encoders read of texts and pairs of texts, against what transformers makes of them (tests/e2e/labels, by
// tests/e2e/hf/make.py).
#include "frontends/hf_text_form.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

using namespace gptc;

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<int32_t>;
const std::string models = GPTC_SOURCE_DIR "/tests/e2e/labels/";

json goldenOf(const std::string &file) { return parseJson(readInput(models + file, "golden")); }

TEST(TypedText, IsCutAndTypedAsByTransformers) {
  const json golden = goldenOf("texts.json");
  int cut = 0, pairs = 0;
  for (const json &g : golden) {
    const Tokenizer t = Tokenizer::fromJson(g.at("tokenizer").dump(), "t.json");
    for (const json &one : g.at("texts")) {
      const auto texts = one.at("text").get<std::vector<std::string>>();
      const std::optional<std::string> pair = texts.size() > 1 ? std::optional(texts[1]) : std::nullopt;
      const TypedText got =
          typedText(t, texts[0], pair, {.most = one.at("most"), .cutsBeginnings = g.at("side") == "left"});
      EXPECT_EQ(got.tokens, one.at("ids").get<Ids>()) << g.at("side") << " " << one;
      EXPECT_EQ(got.types, one.at("types").get<Ids>()) << g.at("side") << " " << one;
      const TypedText whole = typedText(t, texts[0], pair, {.most = 100});
      EXPECT_EQ(got.isCut, whole.tokens.size() > got.tokens.size()) << one;
      EXPECT_FALSE(whole.isCut);
      cut += got.isCut;
      pairs += texts.size() > 1;
    }
  }
  EXPECT_GE(cut, 60);
  EXPECT_GE(pairs, 100);
}

TEST(TypedText, IsAsTheFoldersOfModelsSay) {
  for (const char *name : {"pair", "score", "several"}) {
    const TextForm form = readHfTextForm(models + name);
    EXPECT_EQ(form.most, std::string(name) == "pair" ? 16 : 20);
    EXPECT_EQ(form.cutsBeginnings, std::string(name) == "score");
    EXPECT_EQ(form.hasTypes, std::string(name) != "several");
    const Tokenizer t = Tokenizer::load(models + name + "/tokenizer.json");
    const json golden = goldenOf(std::string(name) + "/golden.json");
    for (const json &one : golden) {
      const json &second = part(one, "text_pair");
      const TypedText got =
          typedText(t, one.at("text"), second.is_null() ? std::nullopt : std::optional<std::string>(second), form);
      EXPECT_EQ(got.tokens, one.at("ids").get<Ids>()) << name << " " << one;
      EXPECT_EQ(got.types, one.at("types").get<Ids>()) << name << " " << one;
    }
  }
}

/// "208 ...": the code and the message of what is thrown; "" if nothing is.
template <typename F> std::string problemOf(F call) {
  try {
    call();
  } catch (const UserError &e) {
    EXPECT_FALSE(e.diagnostics[0].help.empty()) << e.what();
    return fmt::format("{} {}", int(e.diagnostics[0].code), e.diagnostics[0].message);
  }
  return "";
}

TEST(TypedText, WithoutRoomOrTemplateIsRefused) {
  const Tokenizer t = Tokenizer::load(models + "pair/tokenizer.json");
  // What needs no cut is taken, however little room there is.
  EXPECT_EQ(typedText(t, "", std::nullopt, {.most = 2}).tokens, (Ids{2, 3}));
  EXPECT_EQ(typedText(t, "t4 t5", std::nullopt, {.most = 3}).tokens, (Ids{2, 4, 3}));
  EXPECT_EQ(problemOf([&] { typedText(t, "t4", std::nullopt, {.most = 2}); }),
            "101 texts are cut to 2 tokens, and the tokenizer puts 2 around each");
  EXPECT_EQ(typedText(t, "t4", "t5", {.most = 4}).tokens, (Ids{2, 3, 5, 3}));
  EXPECT_EQ(problemOf([&] { typedText(t, "t4", "t5", {.most = 3}); }),
            "101 texts are cut to 3 tokens, and the tokenizer puts 3 around each pair");
  // The prompt stands before the first text alone, and is cut with it.
  EXPECT_EQ(typedText(t, "t4", "t5", {.most = 9, .prompt = "t7 "}).tokens, (Ids{2, 7, 4, 3, 5, 3}));
  EXPECT_EQ(typedText(t, "t4 t5", std::nullopt, {.most = 4, .prompt = "t7 "}).tokens, (Ids{2, 7, 4, 3}));
  const Tokenizer bytes = Tokenizer::bytes();
  EXPECT_EQ(typedText(bytes, "ab", std::nullopt, {.most = 1}).tokens, bytes.encode("a"));
  EXPECT_TRUE(problemOf([&] { typedText(bytes, "a", "b", {.most = 9}); }).starts_with("208 the tokenizer's file does"));
}

// A mask that the tokenizer does not know: what is around it is encoded as if it stood there.
TEST(TypedText, MasksAreTokensOfTheForm) {
  const Tokenizer t = Tokenizer::load(models + "pair/tokenizer.json"), bytes = Tokenizer::bytes();
  const TextForm form = {.most = 9, .mask = "[MASK]", .maskToken = 256};
  const auto ofBytes = [&](const char *text) { return typedText(bytes, text, std::nullopt, form).tokens; };
  EXPECT_EQ(ofBytes("[MASK]"), (Ids{256}));
  EXPECT_EQ(ofBytes("a[MASK][MASK] b"), (Ids{'a', 256, 256, ' ', 'b'}));
  EXPECT_EQ(ofBytes("[MASK"), (Ids{'[', 'M', 'A', 'S', 'K'}));
  EXPECT_EQ(ofBytes("a"), (Ids{'a'}));
  const TypedText pair = typedText(t, "t4 [MASK]t5", "[MASK] t6", form);
  EXPECT_EQ(pair.tokens, (Ids{2, 4, 256, 5, 3, 256, 6, 3}));
  EXPECT_EQ(pair.types, (Ids{0, 0, 0, 0, 0, 1, 1, 1}));
  const TypedText cut = typedText(t, "[MASK] t4 t5", std::nullopt, {.most = 4, .mask = "[MASK]", .maskToken = 9});
  EXPECT_EQ(cut.tokens, (Ids{2, 9, 4, 3}));
  EXPECT_TRUE(cut.isCut);
}

class HfTextForm : public testing::Test {
protected:
  void SetUp() override { fs::create_directories(dir); }
  void TearDown() override { fs::remove_all(dir); }
  TextForm formOf(const std::string &config) {
    std::ofstream(dir / "tokenizer_config.json") << config;
    return readHfTextForm(dir.string());
  }
  const fs::path dir = fs::path(testing::TempDir()) / fmt::format("gptc-text-form-{}", ::getpid());
};

TEST_F(HfTextForm, IsReadFromTheTokenizersFiles) {
  const TextForm none = readHfTextForm(dir.string());
  EXPECT_TRUE(none.most == 0 && !none.cutsBeginnings && none.hasTypes);
  EXPECT_EQ(formOf(R"({"model_max_length": 1000000000000000019884624838656})").most, 0);
  EXPECT_EQ(formOf(R"({"model_max_length": null, "max_len": 128})").most, 128);
  EXPECT_EQ(formOf(R"({"model_max_length": 512, "max_len": 128})").most, 512);
  EXPECT_TRUE(formOf(R"({"model_input_names": ["token_type_ids", "input_ids"]})").hasTypes);
  EXPECT_FALSE(formOf(R"({"model_input_names": ["input_ids"]})").hasTypes);
  // What tokenizer.json cuts at is the default.
  std::ofstream(dir / "tokenizer.json") << R"({"truncation": {"direction": "Left", "max_length": 7}})";
  EXPECT_TRUE(formOf("{}").cutsBeginnings);
  EXPECT_EQ(formOf("{}").most, 0);
  EXPECT_FALSE(formOf(R"({"truncation_side": "right"})").cutsBeginnings);
}

TEST_F(HfTextForm, OfDamagedFilesIsRefused) {
  const std::string file = "504 " + (dir / "tokenizer_config.json").string() + ": ";
  const std::pair<const char *, const char *> all[] = {
      {"[]", "it is no JSON object"},
      {"{", "it is no JSON object"},
      {R"({"unk_token": "\udc00"})", "column 21: a \\u escape is half of a character"},
      {R"({"model_max_length": 0})", "model_max_length is 0, and no number of tokens"},
      {R"({"model_max_length": -4})", "model_max_length is -4, "},
      {R"({"model_max_length": 1.5})", "model_max_length is 1.5, "},
      {R"({"max_len": "512"})", "max_len is \"512\", "},
      {R"({"truncation_side": "middle"})", "truncation_side is \"middle\", neither left nor right"},
      {R"({"truncation_side": 3})", "truncation_side is 3, neither left nor right"},
      {R"({"model_input_names": "token_type_ids"})", "model_input_names is \"token_type_ids\", and no list"}};
  for (const auto &[config, why] : all) {
    const std::string said = problemOf([&, config = config] { formOf(config); });
    EXPECT_TRUE(said.starts_with(file + why)) << said;
  }
}

}  // namespace
