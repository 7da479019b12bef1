// How models and tokenizers are described to other programs. That transformers takes it is tested in tests/e2e.
#include "frontends/gguf/vocabulary.h"
#include "frontends/hf_folder.h"
#include "frontends/hf_text_form.h"
#include "frontends/hf_tokens.h"
#include "frontends/own_config.h"
#include "frontends/tokenizer/tokenizer.h"
#include "support/diagnostics.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

using namespace gptc;

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

ModelConfig gpt2() {
  ModelConfig m;
  m.nLayer = 2, m.nHead = m.nKvHead = 4, m.nEmbd = 32, m.ffnDim = 96, m.vocabSize = 65, m.blockSize = 16;
  return m;
}

ModelConfig llama() {
  ModelConfig m = gpt2();
  m.nKvHead = 2, m.norm = Norm::rmsnorm, m.normEps = 1e-6, m.position = Position::rope;
  m.activation = Activation::swiglu, m.bias = false, m.tieEmbeddings = false;
  return m;
}

class HfFolderTest : public testing::Test {
protected:
  void SetUp() override { fs::create_directories(dir); }
  void TearDown() override { fs::remove_all(dir); }
  void write(const std::string &name, const std::string &text) { std::ofstream(dir / name) << text; }
  /// What differs between a description and a model.
  std::vector<std::string> compared(const std::string &config, const ModelConfig &m) {
    write("config.json", config);
    std::vector<std::string> all;
    const HfComparison c = compareHfConfig(dir.string(), m);
    EXPECT_TRUE(c.found);
    for (const Diagnostic &d : c.differences)
      all.push_back(d.message.substr(c.file.size() + 2));
    return all;
  }
  const fs::path dir = fs::path(testing::TempDir()) / ("gptc-hf-folder-" + std::to_string(::getpid()));
};

using Lines = std::vector<std::string>;

TEST_F(HfFolderTest, OfAFamilyIsReadBackWithoutADifference) {
  for (const auto &[name, model] : {std::pair("gpt2", gpt2()), {"llama", llama()}}) {
    for (const bool tied : {true, false}) {
      ModelConfig m = model;
      m.tieEmbeddings = tied;
      const HfDescription d = describeForHf(m, "bfloat16", {});
      EXPECT_EQ(d.family, name);
      EXPECT_EQ(d.differing, Lines{});
      EXPECT_EQ(compared(d.config, m), Lines{}) << d.config;
      const json c = json::parse(d.config);
      EXPECT_EQ(c["model_type"], name);
      EXPECT_EQ(c["tie_word_embeddings"], tied);
      EXPECT_EQ(c["dtype"], "bfloat16");
      EXPECT_EQ(c["torch_dtype"], "bfloat16");
      EXPECT_TRUE(c["eos_token_id"].is_null()) << "transformers would take GPT-2's otherwise";
      EXPECT_FALSE(c.contains("auto_map"));
    }
    ModelConfig other = model;
    other.nLayer = 3;
    EXPECT_EQ(compared(describeForHf(model, "float32", {}).config, other).size(), 1u);
  }
}

TEST_F(HfFolderTest, SaysWhatNoFamilyHolds) {
  auto differing = [](ModelConfig m, auto change) {
    change(m);
    const HfDescription d = describeForHf(m, "float32", {});
    EXPECT_EQ(d.family.empty(), !d.differing.empty());
    return d.differing;
  };
  EXPECT_EQ(differing(gpt2(), [](ModelConfig &m) { m.bias = false; }), Lines{"bias"});
  EXPECT_EQ(differing(gpt2(), [](ModelConfig &m) { m.nKvHead = 2; }), Lines{"n_kv_head"});
  EXPECT_EQ(differing(gpt2(), [](ModelConfig &m) { m.causal = false, m.embeddingNorm = true; }),
            (Lines{"causal", "embedding_norm"}));
  EXPECT_EQ(differing(llama(), [](ModelConfig &m) { m.position = Position::alibi; }), Lines{"position"});
  EXPECT_EQ(differing(llama(), [](ModelConfig &m) { m.activation = Activation::silu; }), Lines{"activation"});
  EXPECT_EQ(differing(gpt2(), [](ModelConfig &m) { m.dropout = 0.5; }), Lines{}) << "part of training only";
}

TEST_F(HfFolderTest, OfNoFamilyHasTheKeysOfModel) {
  ModelConfig m = llama();
  m.position = Position::alibi;
  const std::string config = describeForHf(m, "float32", {.eos = {3}}).config;
  const json c = json::parse(config);
  EXPECT_EQ(c["model_type"], "gptc");
  EXPECT_EQ(c["no_family_holds"], json::array({"position"}));
  EXPECT_EQ(c["position"], "alibi");
  EXPECT_EQ(c["norm_eps"], 1e-6);
  EXPECT_EQ(c["eos_token_id"], 3);
  EXPECT_EQ(compared(config, m), Lines{});
  ModelConfig other = m;
  other.nLayer = 3, other.bias = true;
  EXPECT_EQ(compared(config, other),
            (Lines{"bias = false, but model.bias = true", "n_layer = 2, but model.n_layer = 3"}));
  json changed = c;
  changed["rotary_twist"] = 2;
  changed.erase("causal");  // an older version knew only one value
  EXPECT_EQ(compared(changed.dump(), m), Lines{"unknown key rotary_twist = 2"});
  m.causal = false;
  EXPECT_EQ(compared(changed.dump(), m).size(), 2u);
}

// A checkpoint's manifest says more, and loading compares it; not so some other program's file of that name.
TEST_F(HfFolderTest, InACheckpointIsNotCompared) {
  write("config.json", describeForHf(gpt2(), "float32", {}).config);
  ModelConfig other = gpt2();
  other.nLayer = 3;
  write("manifest.json", R"({"version": 1})");
  EXPECT_EQ(compareHfConfig(dir.string(), other).differences.size(), 1u);
  write("manifest.json", R"({"model_keys": {"n_layer": "2"}})");
  EXPECT_FALSE(compareHfConfig(dir.string(), other).found);
  EXPECT_EQ(compareHfConfig((dir / "config.json").string(), other).differences.size(), 1u) << "a file of weights";
}

const char *kTokenizer = R"({"version": "1.0", "added_tokens": [
  {"id": 4, "content": "<|endoftext|>", "special": true}, {"id": 5, "content": "<|im_end|>", "special": true}],
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<s>": 2, "<pad>": 3}, "merges": []}})";

TEST_F(HfFolderTest, OwnTokenizersEndATextAsGpt2s) {
  write("tokenizer.json", kTokenizer);
  const HfFolder f = describeFolder(gpt2(), (dir / "tokenizer.json").string());
  EXPECT_EQ(f.files.size(), 5u);
  EXPECT_EQ(f.files.at("tokenizer.json"), kTokenizer);
  EXPECT_EQ(json::parse(f.files.at("generation_config.json")),
            json::parse(R"({"bos_token_id": 4, "eos_token_id": 4, "pad_token_id": null})"));
  EXPECT_EQ(json::parse(f.files.at("special_tokens_map.json")),
            json::parse(R"({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})"));
  const json c = json::parse(f.files.at("tokenizer_config.json"));
  EXPECT_EQ(c["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(c["model_max_length"], 16);
  EXPECT_EQ(c["model_input_names"], json({"input_ids", "attention_mask"})) << "generate takes no token_type_ids";
  EXPECT_EQ(c["eos_token"], "<|endoftext|>");
  EXPECT_EQ(json::parse(f.files.at("config.json"))["eos_token_id"], 4);
  write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  EXPECT_EQ(json::parse(describeFolder(gpt2(), (dir / "tokenizer.json").string()).files.at("special_tokens_map.json")),
            json::object());
  EXPECT_EQ(describeFolder(gpt2(), "").files.size(), 2u) << "without a tokenizer";
  const std::string bert = GPTC_SOURCE_DIR "/tests/unit/frontends/hf/bert-5.json";
  const HfFolder encoder =
      describeFolder(readHfConfigText(readInput(bert, "test"), bert), (dir / "tokenizer.json").string());
  EXPECT_EQ(json::parse(encoder.files.at("tokenizer_config.json"))["model_input_names"],
            json({"input_ids", "token_type_ids", "attention_mask"}));
}

TEST_F(HfFolderTest, ThoseOfOtherModelsKeepTheirTokens) {
  write("tokenizer.json", kTokenizer);
  write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "auto_map": {"AutoTokenizer": "x.Y"},
    "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "<|endoftext|>", "pad_token": "<pad>",
    "chat_template": "{{ messages }}"})");
  write("generation_config.json", R"({"eos_token_id": [5, 4]})");
  const auto files = describeFolder(gpt2(), (dir / "tokenizer.json").string()).files;
  EXPECT_EQ(json::parse(files.at("generation_config.json")),
            json::parse(R"({"bos_token_id": 2, "eos_token_id": [4, 5], "pad_token_id": 3})"));
  const json c = json::parse(files.at("tokenizer_config.json"));
  EXPECT_EQ(c["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(c["chat_template"], "{{ messages }}");
  EXPECT_FALSE(c.contains("auto_map"));
  EXPECT_EQ(json::parse(files.at("config.json"))["eos_token_id"], json::array({4, 5}));
}

TEST_F(HfFolderTest, TokensThatOnlyConfigsNameAreKept) {
  write("tokenizer.json", kTokenizer);
  write("tokenizer_config.json", "{}");
  write("config.json", R"({"bos_token_id": 2, "eos_token_id": [5, 4], "pad_token_id": 3})");
  const std::string tokenizer = dir / "tokenizer.json", from = "hf:" + dir.string();
  auto tokens = [&](const std::string &file, const std::string &initFrom) {
    return json::parse(describeFolder(gpt2(), file, initFrom).files.at("generation_config.json"));
  };
  const json all = json::parse(R"({"bos_token_id": 2, "eos_token_id": [5, 4], "pad_token_id": 3})");
  EXPECT_EQ(tokens(tokenizer, ""), all);
  EXPECT_EQ(json::parse(describeFolder(gpt2(), tokenizer).files.at("config.json"))["pad_token_id"], 3);
  EXPECT_EQ(modelTokens(tokenizer, Tokenizer::load(tokenizer), "", 65).ends, (std::vector<int32_t>{5, 4}));
  EXPECT_EQ(tokens("", from), all) << "of the weights";
  EXPECT_TRUE(tokens("", "scratch")["eos_token_id"].is_null());
  write("generation_config.json", R"({"eos_token_id": 1, "pad_token_id": null})");
  EXPECT_EQ(tokens(tokenizer, ""), json::parse(R"({"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 3})"));
  // Beside another tokenizer stands nothing, or what comes first.
  fs::create_directories(dir / "data");
  fs::copy_file(dir / "tokenizer.json", dir / "data/tokenizer.json");
  write("data/tokenizer_config.json", "{}");
  const std::string other = dir / "data/tokenizer.json";
  EXPECT_EQ(tokens(other, from)["eos_token_id"], 1);
  EXPECT_TRUE(tokens(other, "")["eos_token_id"].is_null());
  write("data/config.json", R"({"eos_token_id": 4})");
  EXPECT_EQ(tokens(other, from), json::parse(R"({"bos_token_id": 2, "eos_token_id": 4, "pad_token_id": 3})"));
}

TEST_F(HfFolderTest, IdsThatAreNoTokensAreRefusedWithTheirFileAndKey) {
  write("tokenizer.json", kTokenizer);
  for (const char *name : {"generation_config.json", "config.json"}) {
    for (const char *key : {"eos_token_id", "bos_token_id", "pad_token_id"})
      for (const char *value : {"\"x\"", "-1", "1.5e+30", "[2,2.5]", "2.0", "true", "{}", "[\"2\"]", "[[2]]"}) {
        if (std::string(key) == "pad_token_id" && std::string(value) == "-1")
          continue;  // none, as Llama's first configurations write
        write(name, fmt::format(R"({{"{}": {}}})", key, value));
        std::string said;
        try {
          readHfTokens(dir.string(), 65);
        } catch (const UserError &e) {
          said = fmt::format("{} {}", int(e.diagnostics[0].code), e.diagnostics[0].message);
        }
        EXPECT_EQ(said, fmt::format("302 {}: {} is {}, and the model's tokens are 0 to 64", (dir / name).string(), key,
                                    value));
        EXPECT_THROW(describeFolder(gpt2(), (dir / "tokenizer.json").string()), UserError) << key << value;
      }
    write(name, R"({"eos_token_id": 50256, "bos_token_id": 65, "pad_token_id": -1})");
    EXPECT_EQ(readHfTokens(dir.string(), 65), HfTokens());
    write(name, R"({"eos_token_id": [64, 2, 64, 65], "bos_token_id": null})");
    EXPECT_EQ(readHfTokens(dir.string(), 65), (HfTokens{.bos = {}, .eos = {64, 2}, .pad = {}}));
    fs::remove(dir / name);
  }
}

// A classifier reads texts as it has learned them.
TEST_F(HfFolderTest, TextsAreCutAndTypedAsBefore) {
  const std::string config = GPTC_SOURCE_DIR "/tests/unit/frontends/hf/bert-5.json";
  const ModelConfig bert = readHfConfigText(readInput(config, "test"), config);
  write("tokenizer.json", kTokenizer);
  for (const bool left : {false, true})
    for (const bool typed : {false, true}) {
      json said = {{"model_input_names", {"input_ids", "attention_mask"}}};
      if (typed)
        said["model_input_names"].push_back("token_type_ids");
      if (left)
        said["truncation_side"] = "left";
      write("tokenizer_config.json", said.dump());
      const HfFolder written = describeFolder(bert, (dir / "tokenizer.json").string());
      write("tokenizer_config.json", written.files.at("tokenizer_config.json"));
      const TextForm form = readHfTextForm(dir.string());
      EXPECT_EQ(form.cutsBeginnings, left);
      EXPECT_EQ(form.hasTypes, typed);
      EXPECT_EQ(form.most, bert.blockSize);
    }
  write("tokenizer_config.json", R"({"model_input_names": ["input_ids", "token_type_ids"]})");
  const HfFolder other = describeFolder(gpt2(), (dir / "tokenizer.json").string());
  EXPECT_EQ(json::parse(other.files.at("tokenizer_config.json"))["model_input_names"],
            json({"input_ids", "attention_mask"}))
      << "a model without the input";
}

TEST_F(HfFolderTest, WhatContradictsTheTokenizerIsRefused) {
  auto code = [&] {
    try {
      describeFolder(gpt2(), (dir / "tokenizer.json").string());
    } catch (const UserError &e) {
      return e.diagnostics[0].code;
    }
    return ErrorCode::Usage;
  };
  write("tokenizer.json", kTokenizer);
  for (const char *config : {"[", "[]", R"({"eos_token": "</s>"})"}) {
    write("tokenizer_config.json", config);
    EXPECT_EQ(code(), ErrorCode::DataInvalid) << config;
  }
  for (const char *config : {"{}", R"({"eos_token": null})", R"({"eos_token": ["a"]})", R"({"eos_token": {"x": 1}})"}) {
    write("tokenizer_config.json", config);
    EXPECT_EQ(code(), ErrorCode::Usage) << config << ": no end of text";
  }
  fs::remove(dir / "tokenizer_config.json");
  write("generation_config.json", "{");
  EXPECT_EQ(code(), ErrorCode::DataInvalid);
}

TEST_F(HfFolderTest, ModelsOfSentencePieceBecomeJson) {
  const std::string model = GPTC_SOURCE_DIR "/tests/unit/frontends/tokenizers/sp-bpe-llama.model";
  ModelConfig m = llama();
  m.vocabSize = 400;
  const HfFolder folder = describeFolder(m, model);
  EXPECT_EQ(json::parse(folder.files.at("special_tokens_map.json")),
            json({{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}));
  EXPECT_EQ(json::parse(folder.files.at("generation_config.json")).at("eos_token_id"), 2);
  EXPECT_EQ(Tokenizer::fromJson(folder.files.at("tokenizer.json"), "x").encode("the boats"),
            Tokenizer::load(model).encode("the boats"));
  EXPECT_EQ(folder.tokenizerProblem, "");
}

/// transformers would convert a tokenizer.model in the folder, and give other ids without a word.
TEST_F(HfFolderTest, ModelsOfSentencePieceThatJsonCannotHoldAreLeftOutAndSaid) {
  ModelConfig m = llama();
  m.vocabSize = 400;
  for (const auto &[name, why] : {std::pair("sp-suffix", "treat_whitespace_as_suffix"),
                                  {"sp-bpe", "users defined pieces, and extra spaces are removed"}}) {
    const std::string file = fmt::format(GPTC_SOURCE_DIR "/tests/unit/frontends/tokenizers/{}.model", name);
    const HfFolder none = describeFolder(m, file);
    EXPECT_EQ(none.files.size(), 2u) << "config.json and generation_config.json";
    EXPECT_NE(none.tokenizerProblem.find(why), std::string::npos) << none.tokenizerProblem;
    EXPECT_EQ(json::parse(none.files.at("generation_config.json")).at("eos_token_id"),
              Tokenizer::load(file).endOfText());
  }
}

/// What a GGUF file says of its tokens goes into the folder, and from there into another GGUF file.
TEST_F(HfFolderTest, TokensOfAGgufFileAreDescribedAsItsKeysSay) {
  GgufVocabulary v;
  v.model = "gpt2";
  v.pre = "llama-bpe";
  v.tokens = {"a", "b", "ab", "<s>", "</s>", "<turn>"};
  v.types = {1, 1, 1, 3, 3, 3};
  v.merges = {"a b"};
  v.bos = 3, v.eos = 4, v.eot = 5;
  v.addBos = true;
  v.chatTemplate = "{{ messages }}";
  GgufKeys keys = {{"general.architecture", std::string("llama")}};
  addVocabulary(keys, &v);
  const std::string file = dir / "x.gguf";
  GgufWriter(file, keys, {}).finish();
  ModelConfig m = llama();
  m.vocabSize = 6;
  const HfFolder folder = describeFolder(m, file);
  const json config = json::parse(folder.files.at("tokenizer_config.json"));
  EXPECT_EQ(config.at("bos_token"), "<s>");
  EXPECT_EQ(config.at("eos_token"), "</s>");
  EXPECT_EQ(config.at("chat_template"), v.chatTemplate);
  EXPECT_EQ(json::parse(folder.files.at("generation_config.json")).at("eos_token_id"), json({4, 5}));
  const GgufVocabulary again = vocabularyOf(folder.files, dir, 6);
  EXPECT_EQ(again.pre, v.pre);
  EXPECT_EQ(again.tokens, v.tokens);
  EXPECT_EQ(again.types, v.types);
  EXPECT_EQ(again.merges, v.merges);
  EXPECT_EQ(std::tuple(again.bos, again.eos, again.eot), std::tuple(3, 4, 5));
  EXPECT_EQ(std::tuple(again.addBos, again.addEos), std::tuple(true, false));
  EXPECT_EQ(again.chatTemplate, v.chatTemplate);
}

}  // namespace
