// Metadata and vocabularies of GGUF files against [model] and tokenizer.json. gguf/*.gguf are tiny models with the
// metadata that llama.cpp's converter writes (gguf/make_goldens.py).
#include "frontends/gguf/gguf_model.h"
#include "frontends/gguf/vocabulary.h"
#include "frontends/model_text.h"
#include "frontends/tokenizer/tokenizer.h"
#include "frontends/tokenizer/training.h"
#include "frontends/toml_config.h"
#include "support/files.h"
#include "support/json.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

using namespace gptc;

namespace {

using json = nlohmann::json;
using Texts = std::vector<std::string>;

const std::string goldens = GPTC_SOURCE_DIR "/tests/unit/frontends/gguf/";

class GgufModel : public testing::Test {
protected:
  std::filesystem::path dir;
  void SetUp() override {
    dir = std::filesystem::path(testing::TempDir()) / ("gptc-gguf-model-" + std::to_string(::getpid()));
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
  }
  void TearDown() override { std::filesystem::remove_all(dir); }

  std::string path(const std::string &name) const { return (dir / name).string(); }
  std::string write(const std::string &name, const std::string &text) {
    std::ofstream(dir / name) << text;
    return path(name);
  }
  /// A model file with the model of a GGUF file, from which it begins.
  std::string modelFile(const std::string &gguf, const std::string &weights) {
    return write("model.toml", fmt::format("[model]\ninit_from = {}\n{}\n[data]\ntrain = \"train.bin\"\n",
                                           tomlString("gguf:" + weights), modelText(importGguf(GgufFile(gguf)))));
  }
  /// A file with these keys and tensors of zeros.
  std::string made(const GgufKeys &keys, const std::vector<GgufWriter::Tensor> &tensors) {
    GgufWriter out(path("x.gguf"), keys, tensors);
    for (const GgufWriter::Tensor &t : tensors)
      out.write(std::string(size_t(t.bytes()), 0).data(), size_t(t.bytes()));
    out.finish();
    return path("x.gguf");
  }
  /// `CODE message` of every problem, without the file's name.
  template <typename F> Texts problems(F f) {
    Texts all;
    try {
      f();
    } catch (const UserError &e) {
      for (const Diagnostic &d : e.diagnostics) {
        std::string text = d.message;
        if (const size_t at = text.find(path("x.gguf")); at != std::string::npos)
          text.erase(at, path("x.gguf").size());
        all.push_back(fmt::format("{} {}", int(d.code), text));
        EXPECT_FALSE(d.help.empty()) << text;
      }
    }
    return all;
  }
};

const GgufKeys llamaKeys = {{"general.architecture", std::string("llama")},
                            {"general.name", std::string("any")},
                            {"llama.block_count", uint32_t(2)},
                            {"llama.context_length", uint32_t(16)},
                            {"llama.embedding_length", uint32_t(16)},
                            {"llama.feed_forward_length", uint32_t(24)},
                            {"llama.attention.head_count", uint32_t(4)},
                            {"llama.attention.layer_norm_rms_epsilon", 1e-6f}};
const std::vector<GgufWriter::Tensor> embeddings = {{"token_embd.weight", GgmlType::f32, {37, 16}}};

GgufKeys with(GgufKeys keys, const std::string &key, GgufValue value) {
  for (auto &[name, old] : keys)
    if (name == key) {
      old = std::move(value);
      return keys;
    }
  keys.emplace_back(key, std::move(value));
  return keys;
}

TEST_F(GgufModel, ImportsAsAModelFileThatHoldsIt) {
  const std::string file = goldens + "llama.gguf";
  const ModelConfig llama = importGguf(GgufFile(file));
  EXPECT_EQ(modelText(llama), R"(n_layer = 2
n_head = 2
n_embd = 12                     # the width
n_kv_head = 1                   # heads of keys and values
ffn_dim = 20
vocab_size = 37
block_size = 16                 # the context, in tokens; a shorter one works, too
norm = "rmsnorm"
norm_eps = 1e-06
activation = "swiglu"
position = "rope"
bias = false
tie_embeddings = false          # whether the classifier is the embedding table
)");
  EXPECT_EQ(llama.normEps, 1e-6);
  for (const char *name : {"llama", "gpt2", "bloom"}) {
    const std::string weights = fmt::format("{}{}.gguf", goldens, name);
    const Config c = loadConfig(modelFile(weights, weights), {}, {});
    EXPECT_TRUE(c.warnings.empty()) << name;
    EXPECT_EQ(c.run.initFrom, "gguf:" + weights);
    EXPECT_TRUE(compareGguf(weights, c.model).differences.empty()) << name;
  }
  const ModelConfig bloom = importGguf(GgufFile(goldens + "bloom.gguf"));
  EXPECT_EQ(bloom.position, Position::alibi);
  EXPECT_TRUE(bloom.embeddingNorm && bloom.bias && bloom.tieEmbeddings);
  EXPECT_EQ(bloom.ffnDim, 48);
}

TEST_F(GgufModel, EachDifferenceIsAnErrorWithBothValues) {
  std::filesystem::copy(goldens + "llama.gguf", dir / "x.gguf");
  const struct {
    const char *setting;
    std::string message;
  } cases[] = {
      {"model.n_layer=3", "209 : llama.block_count = 2, but model.n_layer = 3"},
      {"model.n_head=1", "209 : llama.attention.head_count = 2, but model.n_head = 1"},
      {"model.n_kv_head=2", "209 : llama.attention.head_count_kv = 1, but model.n_kv_head = 2"},
      {"model.n_embd=24", "209 : llama.embedding_length = 12, but model.n_embd = 24"},
      {"model.ffn_dim=32", "209 : llama.feed_forward_length = 20, but model.ffn_dim = 32"},
      {"model.vocab_size=38", "209 : token_embd.weight has 37 rows, but model.vocab_size = 38"},
      {"model.block_size=17", "209 : llama.context_length = 16, but model.block_size = 17"},
      {"model.norm_eps=1e-5", "209 : llama.attention.layer_norm_rms_epsilon = 1e-06, but model.norm_eps = 1e-05"},
      {"model.norm=layernorm",
       "209 : general.architecture = \"llama\" has norm = \"rmsnorm\", but model.norm = \"layernorm\""},
      {"model.activation=geglu",
       "209 : general.architecture = \"llama\" has activation = \"swiglu\", but model.activation = \"geglu\""},
      {"model.position=alibi",
       "209 : general.architecture = \"llama\" has position = \"rope\", but model.position = \"alibi\""},
      {"model.bias=true", "209 : general.architecture = \"llama\" has bias = false, but model.bias = true"},
      {"model.causal=false", "209 : general.architecture = \"llama\" has causal = true, but model.causal = false"},
      {"model.embedding_norm=true",
       "209 : general.architecture = \"llama\" has embedding_norm = false, but model.embedding_norm = true"},
      {"model.tie_embeddings=true", "209 : a tensor output.weight, but model.tie_embeddings = true"}};
  const std::string model = modelFile(path("x.gguf"), "x.gguf");
  for (const auto &c : cases)
    EXPECT_EQ(problems([&] { loadConfig(model, {c.setting}, {}); }), Texts{c.message}) << c.setting;
  for (const char *fine : {"model.block_size=8", "model.dropout=0.5", "model.init_from=scratch"})
    EXPECT_EQ(problems([&] { loadConfig(model, {fine}, {}); }), Texts{}) << fine;
  const Config missing = loadConfig(model, {"model.init_from=gguf:none.gguf"}, {});
  ASSERT_EQ(missing.warnings.size(), 1u);
  EXPECT_NE(missing.warnings[0].find("is not checked"), std::string::npos) << missing.warnings[0];
  write("x.gguf", "no model");
  EXPECT_EQ(problems([&] { loadConfig(model, {}, {}); }),
            Texts{"504  is no valid GGUF file: it does not begin with GGUF"});
}

TEST_F(GgufModel, PoolingIsLlamaCppsNumber) {
  EXPECT_EQ(ggufPooling(GgufFile(made(llamaKeys, embeddings))), std::nullopt);
  const std::pair<uint32_t, std::optional<std::string>> all[] = {
      {0, std::nullopt}, {1, "mean"}, {2, "cls"}, {3, "last"}};
  for (const auto &[number, word] : all) {
    const GgufFile file(made(with(llamaKeys, "llama.pooling_type", number), embeddings));
    EXPECT_EQ(ggufPooling(file), word) << number;
    EXPECT_EQ(problems([&] { importGguf(file); }), Texts{}) << number;
    GgufMetadata metadata{"llama", llamaKeys, {}};
    addPooling(metadata, word.value_or(""));
    EXPECT_EQ(ggufPooling(GgufFile(made(metadata.keys, embeddings))), word);
  }
}

TEST_F(GgufModel, WhatModelHasNoKeyForIsRefusedByName) {
  struct Case {
    const char *key;
    GgufValue value;
    std::string message;
  };
  const Case cases[] = {
      {"llama.rope.scaling.type", std::string("longrope"),
       "208 : llama.rope.scaling.type = \"longrope\", but only \"none\", \"linear\" or \"yarn\" is built"},
      {"llama.rope.scaling.type", std::string("yarn"),
       "207 : it does not say llama.rope.scaling.original_context_length, which is model.rope_original_block_size"},
      {"llama.rope.scaling.yarn_beta_fast", 16.f, "208 : llama.rope.scaling.yarn_beta_fast = 16, but only 32 is built"},
      {"llama.rope.scaling.yarn_beta_slow", 2.f, "208 : llama.rope.scaling.yarn_beta_slow = 2, but only 1 is built"},
      {"gptc.model.rope_factor", 8.f, "202 : unknown key gptc.model.rope_factor = 8"},
      {"llama.rope.dimension_count", uint32_t(2),
       "208 : llama.rope.dimension_count = 2, but only 4, the whole head, is built"},
      {"llama.attention.value_length", uint32_t(8),
       "208 : llama.attention.value_length = 8, but only 4, as llama.attention.key_length is built"},
      {"llama.rope.freq_base", -1.f, "204 : llama.rope.freq_base = -1, which is no model.rope_theta"},
      {"llama.attention.sliding_window", uint32_t(4096),
       "208 : llama.attention.sliding_window = 4096, but only 0 is built"},
      {"llama.expert_count", uint32_t(8), "208 : llama.expert_count = 8, but only 0 is built"},
      {"llama.logit_scale", 16.f, "208 : llama.logit_scale = 16, but only 1 is built"},
      {"llama.pooling_type", uint32_t(4), "208 : llama.pooling_type = 4, but only 0 or 1 or 2 or 3 is built"},
      {"llama.new_trick", true, "202 : unknown key llama.new_trick = true"},
      {"other.key", std::vector<int32_t>{1, 2}, "202 : unknown key other.key = an array of 2 integers"},
      {"general.type", std::string("adapter"), "208 : general.type = \"adapter\", but only \"model\" is built"},
      {"split.count", uint16_t(3),
       "208 : split.count = 3, but only a model in one file (`llama-gguf-split --merge` of llama.cpp joins them) is "
       "built"},
      {"general.architecture", std::string("mamba"),
       "208 : general.architecture = \"mamba\", but only \"gpt2\", \"qwen2\", \"qwen3\", \"llama\" or \"bloom\" is "
       "built"},
      {"llama.vocab_size", uint32_t(38), "209 : llama.vocab_size = 38, but token_embd.weight has 37 rows"},
      {"llama.block_count", uint32_t(2000), "204 : llama.block_count = 2000, which is no model.n_layer"},
      {"llama.block_count", uint32_t(0), "204 : llama.block_count = 0, which is no model.n_layer"},
      {"llama.embedding_length", uint32_t(18),
       "206 : llama.embedding_length = 18, llama.attention.head_count = 4 and no llama.attention.head_count_kv, which "
       "means 4 do not divide each other"},
      {"llama.attention.head_count", std::vector<int32_t>{4, 4},
       "504  is no valid GGUF file: llama.attention.head_count is an array of 2 integers, where an integer is needed"},
      {"llama.block_count", -1.5f, "504  is no valid GGUF file: llama.block_count is -1.5, where an integer is needed"},
  };
  for (const Case &c : cases)
    EXPECT_EQ(problems([&] { importGguf(GgufFile(made(with(llamaKeys, c.key, c.value), embeddings))); }),
              Texts{c.message})
        << c.key;
  EXPECT_EQ(problems([&] { importGguf(GgufFile(made(llamaKeys, embeddings))); }), Texts{});
  for (const char *harmless : {"general.license", "quantize.imatrix.file", "tokenizer.ggml.whatever"})
    EXPECT_EQ(problems([&] { importGguf(GgufFile(made(with(llamaKeys, harmless, std::string("x")), embeddings))); }),
              Texts{})
        << harmless;
  GgufKeys without;
  for (const auto &key : llamaKeys)
    if (key.first.find("count") == std::string::npos)
      without.push_back(key);
  EXPECT_EQ(problems([&] { importGguf(GgufFile(made(without, embeddings))); }),
            (Texts{"207 : it does not say llama.block_count, which is model.n_layer",
                   "207 : it does not say llama.attention.head_count, which is model.n_head"}));
  for (const auto &[tensor, message] :
       {std::pair{"blk.0.attn_q_norm.weight", "a model without it"},
        {"rope_factors_long.weight", "a model without it"},
        {"rope_freqs.weight",
         "one that Llama 3's scaling gives, with low and high factors 1 and 4 and no other scaling,"}}) {
    auto tensors = embeddings;
    tensors.push_back({tensor, GgmlType::f32, {4}});
    EXPECT_EQ(problems([&] { importGguf(GgufFile(made(llamaKeys, tensors))); }),
              Texts{fmt::format("208 : it has a tensor {}, but only {} is built", tensor, message)});
  }
}

TEST_F(GgufModel, MetadataIsThatOfTheArchitectureThatHoldsTheModel) {
  for (const char *name : {"gpt2", "llama", "bloom", "qwen2", "qwen3"}) {
    const ModelConfig model = importGguf(GgufFile(fmt::format("{}{}.gguf", goldens, name)));
    const GgufMetadata metadata = ggufMetadata(model, "a model", GgmlType::q8_0);
    EXPECT_EQ(metadata.architecture, name);
    auto tensors = embeddings;
    if (!model.tieEmbeddings)
      tensors.push_back({"output.weight", GgmlType::f32, {37, 16}});
    const std::string file = made(metadata.keys, tensors);
    EXPECT_TRUE(compareGguf(file, model).differences.empty()) << name;
    const GgufFile f(file);
    EXPECT_EQ(f.integer("general.file_type"), 7);
    EXPECT_EQ(f.text("general.name"), "a model");
    EXPECT_EQ(f.text(kGgufMadeBy), kGgufMaker);
  }
  ModelConfig m = importGguf(GgufFile(goldens + "llama.gguf"));
  m.norm = Norm::layernorm;
  EXPECT_EQ(problems([&] { ggufMetadata(m, "x", GgmlType::f32); }),
            Texts{"208 no architecture of GGUF that gptc writes holds this model: llama has norm = \"rmsnorm\", not "
                  "\"layernorm\""});
  m = importGguf(GgufFile(goldens + "gpt2.gguf"));
  m.activation = Activation::gelu;
  m.causal = false;
  EXPECT_EQ(problems([&] { ggufMetadata(m, "x", GgmlType::f32); }),
            Texts{"208 no architecture of GGUF that gptc writes holds this model: gpt2 has activation = \"gelu_tanh\", "
                  "not \"gelu\"; causal = true, not false"});
}

TEST_F(GgufModel, QwensHaveBiasesNormsAndHeadsOfTheirOwn) {
  const ModelConfig two = importGguf(GgufFile(goldens + "qwen2.gguf")),
                    three = importGguf(GgufFile(goldens + "qwen3.gguf"));
  EXPECT_EQ(two.qkvBias, true);
  EXPECT_EQ(two.ropeTheta, 1e6);
  const std::string twoText = modelText(two), threeText = modelText(three);
  EXPECT_NE(twoText.find("\nqkv_bias = true\n"), std::string::npos) << twoText;
  EXPECT_NE(twoText.find("\nrope_theta = 1000000\n"), std::string::npos) << twoText;
  EXPECT_EQ(twoText.find("head_dim"), std::string::npos) << twoText;
  EXPECT_EQ(three.qkNorm, QkNorm::head);
  EXPECT_EQ(three.headDim, 8);
  EXPECT_NE(threeText.find("\nhead_dim = 8\n"), std::string::npos) << threeText;
  EXPECT_NE(threeText.find("\nqk_norm = \"head\"\n"), std::string::npos) << threeText;
  EXPECT_EQ(threeText.find("bias = true"), std::string::npos) << threeText;
  // Their keys are those of the file, and a difference names both values.
  ModelConfig m = three;
  m.headDim = 4;
  const GgufComparison there = compareGguf(goldens + "qwen3.gguf", m);
  ASSERT_EQ(there.differences.size(), 1u);
  EXPECT_EQ(there.differences[0].message,
            goldens + "qwen3.gguf: qwen3.attention.key_length = 8, but model.head_dim = 4");
}

TEST_F(GgufModel, ScalingsOfRotationsAreReadAndWritten) {
  ModelConfig m = importGguf(GgufFile(made(llamaKeys, embeddings)));
  m.ropeTheta = 5e5;
  m.headDim = m.rotaryDim = 64;
  auto again = [&](const ModelConfig &model) {
    const GgufMetadata metadata = ggufMetadata(model, "x", GgmlType::f32);
    std::vector<GgufWriter::Tensor> tensors = embeddings;
    for (const auto &[name, values] : metadata.tensors)
      tensors.push_back({name, GgmlType::f32, {int64_t(values.size())}});
    GgufWriter out(path("x.gguf"), metadata.keys, tensors);
    const std::string zeros(size_t(embeddings[0].bytes()), 0);
    out.write(zeros.data(), zeros.size());
    for (const auto &[name, values] : metadata.tensors)
      out.write(values.data(), values.size() * 4);
    out.finish();
    Texts all;
    for (const Diagnostic &d : compareGguf(path("x.gguf"), model).differences)
      all.push_back(d.message);
    return all;
  };
  EXPECT_EQ(again(m), Texts{});
  m.ropeFactor = 4;
  m.ropeScaling = RopeScaling::linear;
  EXPECT_EQ(again(m), Texts{});
  m.ropeScaling = RopeScaling::yarn;
  m.ropeOriginal = 16384;
  EXPECT_EQ(again(m), Texts{});
  const std::string before = "208 no architecture of GGUF that gptc writes holds this model: llama has ";
  m.ropeBetaFast = 16;  // llama.cpp takes 32 and 1, whatever a file says
  m.ropeBetaSlow = 2;
  EXPECT_EQ(problems([&] { again(m); }), Texts{before + "rope_beta_fast = 32, not 16; rope_beta_slow = 1, not 2"});
  m.ropeBetaSlow = 1;
  m.ropeTruncate = false;
  EXPECT_THROW(again(m), UserError) << "no key of a file says it";
  m.ropeTruncate = true;
  m.ropeBetaFast = 32;
  m.ropeScaling = RopeScaling::llama3;
  m.ropeFactor = 32;
  m.ropeOriginal = 8192;
  EXPECT_EQ(again(m), Texts{});
  // Llama 3.2's factors by transformers' formula: the first angles stay, the last are divided.
  const std::vector<float> factors = ggufMetadata(m, "x", GgmlType::f32).tensors.at(0).second;
  ASSERT_EQ(factors.size(), 32u);
  EXPECT_EQ(factors[0], 1);
  EXPECT_EQ(factors[31], 32);
  EXPECT_NEAR(factors[16], 3.29226, 1e-4);  // 8192 theta^(-1/2) / 2 pi = 1.84385 turns: blend 0.28128
  EXPECT_EQ(importGguf(GgufFile(path("x.gguf"))).ropeOriginal, 8192);
  // Numbers that a search for those of Llama's own models would not find.
  ModelConfig any = m;
  any.ropeLow = 2;
  any.ropeHigh = 3;
  any.ropeOriginal = 24;
  any.ropeFactor = 1.7;
  EXPECT_EQ(again(any), Texts{});
  any.ropeTheta = 100;  // no pair has the whole factor
  EXPECT_EQ(again(any), Texts{});
  // The other architectures have no place for the tensor.
  ModelConfig qwen = m;
  qwen.qkNorm = QkNorm::head;
  EXPECT_EQ(problems([&] { again(qwen); }),
            Texts{"208 no architecture of GGUF that gptc writes holds this model: qwen3 has rope_scaling = \"none\", "
                  "not \"llama3\""});
  any.qkvBias = true;
  EXPECT_EQ(ggufMetadata(any, "x", GgmlType::f32).architecture, "llama");
  // A factor without a type is llama.cpp's linear one.
  EXPECT_EQ(importGguf(GgufFile(made(with(llamaKeys, "llama.rope.scaling.factor", 2.f), embeddings))).ropeScaling,
            RopeScaling::linear);
}

TEST_F(GgufModel, NumbersOfALlama3ScalingMustGiveItsTensor) {
  ModelConfig m = importGguf(GgufFile(made(llamaKeys, embeddings)));
  m.ropeScaling = RopeScaling::llama3;
  m.ropeFactor = 8;
  m.ropeOriginal = 100;
  const GgufMetadata metadata = ggufMetadata(m, "x", GgmlType::f32);
  auto tensors = embeddings;
  tensors.push_back({"rope_freqs.weight", GgmlType::f32, {2}});
  EXPECT_EQ(problems([&] { importGguf(GgufFile(made(metadata.keys, tensors))); }),
            Texts{"209 : rope_freqs.weight is not what gptc.model.rope_factor = 8 and the keys beside it give"});
  GgufKeys qwen;
  for (const auto &[key, value] : llamaKeys)
    qwen.emplace_back(key.rfind("llama.", 0) == 0 ? "qwen2" + key.substr(5) : key, value);
  qwen[0].second = std::string("qwen2");
  EXPECT_EQ(problems([&] { importGguf(GgufFile(made(qwen, tensors))); }),
            Texts{"208 : it has a tensor rope_freqs.weight, but only a model without it is built"});
}

TEST_F(GgufModel, ContextsThatAreTooLongAreCut) {
  const std::string file = made(with(llamaKeys, "llama.context_length", uint32_t(1 << 20)), embeddings);
  int64_t context = 0;
  const ModelConfig m = importGguf(GgufFile(file), &context);
  EXPECT_EQ(m.blockSize, kMostBlockSize);
  EXPECT_EQ(context, 1 << 20);
  EXPECT_NE(modelText(m, context)
                .find("\nblock_size = 131072             # the longest context that gptc takes, in tokens; that of the "
                      "weights is 1048576\n"),
            std::string::npos)
      << modelText(m, context);
  EXPECT_TRUE(compareGguf(file, m).differences.empty());
}

TEST_F(GgufModel, BiasesOfLlamaAreThoseThatItsTensorsSay) {
  auto tensors = embeddings;
  tensors.push_back({"blk.0.attn_q.bias", GgmlType::f32, {16}});
  ModelConfig m = importGguf(GgufFile(made(llamaKeys, tensors)));
  EXPECT_EQ(m.qkvBias, true);
  EXPECT_EQ(m.attentionBias, false);
  EXPECT_EQ(ggufMetadata(m, "x", GgmlType::f32).architecture, "qwen2") << "the same model";
  m.attentionBias = true;
  EXPECT_EQ(ggufMetadata(m, "x", GgmlType::f32).architecture, "llama");
  m.headBias = true;
  EXPECT_THROW(ggufMetadata(m, "x", GgmlType::f32), UserError);
}

/// A tokenizer.json of ours, trained on some text.
std::string ours(int64_t tokens) {
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += fmt::format("the {} cats sat on the mats, and {} dogs did not. ", i, i % 7);
  WordCounts words;
  words.add(text);
  return Tokenizer::train(words, tokens).file().content;
}

/// The vocabulary of a tokenizer.json and of what lies beside it.
GgufVocabulary vocabularyIn(const std::string &file, int64_t vocabSize) {
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  std::map<std::string, std::string> texts;
  for (const char *name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"})
    if (std::filesystem::exists(folder / name))
      texts[name] = readInput((folder / name).string(), "test");
  return vocabularyOf(texts, file, vocabSize);
}

TEST_F(GgufModel, OwnVocabulariesAreGpt2s) {
  const std::string file = write("tokenizer.json", ours(300));
  const json j = json::parse(ours(300));
  const GgufVocabulary v = vocabularyIn(file, 305);
  EXPECT_EQ(v.model, "gpt2");
  EXPECT_EQ(v.pre, "gpt-2");
  ASSERT_EQ(v.tokens.size(), 305u);
  for (const auto &[token, id] : j["model"]["vocab"].items())
    EXPECT_EQ(v.tokens[id.get<size_t>()], token);
  EXPECT_EQ(v.merges.size(), j["model"]["merges"].size());
  const int64_t end = Tokenizer::load(file).endOfText();
  EXPECT_EQ(v.tokens[size_t(end)], "<|endoftext|>");
  EXPECT_EQ(v.types[size_t(end)], GgufVocabulary::control);
  EXPECT_EQ(v.types[0], GgufVocabulary::normal);
  EXPECT_EQ(v.types[304], GgufVocabulary::unused);
  EXPECT_EQ(v.tokens[304], "[PAD304]");
  EXPECT_EQ(v.bos, end);
  EXPECT_EQ(v.eos, end);
  EXPECT_FALSE(v.addBos);

  GgufKeys keys;
  addVocabulary(keys, &v);
  const auto back = readVocabulary(GgufFile(made(keys, {})));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->tokens, v.tokens);
  EXPECT_EQ(back->types, v.types);
  EXPECT_EQ(back->merges, v.merges);
  EXPECT_EQ(back->eos, end);
  EXPECT_EQ(back->eot, -1);
  EXPECT_FALSE(back->addSpacePrefix);
  keys.clear();
  addVocabulary(keys, nullptr);
  EXPECT_FALSE(readVocabulary(GgufFile(made(keys, {}))));
}

TEST_F(GgufModel, SpecialTokensComeFromTheFilesBesideATokenizer) {
  json j = json::parse(ours(300));
  for (const auto &[id, text] : std::vector<std::pair<int, const char *>>{{300, "<|start|>"}, {301, "<|end|>"}})
    j["added_tokens"].push_back({{"id", id}, {"content", text}, {"special", true}});
  j["added_tokens"].push_back({{"id", 302}, {"content", "<own>"}, {"special", false}});
  const std::string file = write("tokenizer.json", j.dump());
  write("tokenizer_config.json", R"({"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"}, "pad_token": null,
         "add_bos_token": true, "chat_template": "{{ old }}"})");
  write("generation_config.json", R"({"eos_token_id": [299, 301]})");
  write("chat_template.jinja", "{{ messages }}");
  const GgufVocabulary v = vocabularyIn(file, 303);
  EXPECT_EQ(v.bos, 300);
  EXPECT_EQ(v.eos, 301);
  EXPECT_EQ(v.eot, 299);
  EXPECT_EQ(v.pad, -1);
  EXPECT_TRUE(v.addBos);
  EXPECT_EQ(v.types[302], GgufVocabulary::userDefined);
  EXPECT_EQ(v.chatTemplate, "{{ messages }}");
  GgufKeys keys;
  addVocabulary(keys, &v);
  const auto back = readVocabulary(GgufFile(made(keys, {})));
  EXPECT_EQ(back->chatTemplate, "{{ messages }}");
  EXPECT_EQ(back->eot, 299);
  EXPECT_TRUE(back->addBos);

  EXPECT_EQ(problems([&] { vocabularyIn(file, 302); }),
            Texts{fmt::format("206 {}: token 302 is beyond the model's vocabulary of 302", file)});
  write("generation_config.json", R"({"bos_token_id": 299, "pad_token_id": 302})");
  EXPECT_EQ(vocabularyIn(file, 303).bos, 300) << "the tokenizer's own comes first";
  EXPECT_EQ(vocabularyIn(file, 303).pad, 302);
  write("tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  EXPECT_EQ(vocabularyIn(file, 303).bos, 299);
  write("generation_config.json", R"({"pad_token_id": 2.5})");
  EXPECT_EQ(problems([&] { vocabularyIn(file, 303); }).size(), 1u);
  write("generation_config.json", R"({"eos_token_id": 303})");
  EXPECT_EQ(problems([&] { vocabularyIn(file, 303); }).size(), 1u);
  write("generation_config.json", "[");
  EXPECT_EQ(problems([&] { vocabularyIn(file, 303); }).size(), 1u);
}

TEST_F(GgufModel, WhatAVocabularyOfGgufCannotSayIsRefused) {
  json j = json::parse(ours(300));
  j["added_tokens"].push_back({{"id", 300}, {"content", "<own>"}, {"special", false}, {"lstrip", false}});
  j["added_tokens"].push_back({{"id", 301}, {"content", "<mask>"}, {"special", true}, {"lstrip", true}});
  std::vector<std::string> notes;
  auto said = [&] {
    notes.clear();
    try {
      vocabularyOf({{"tokenizer.json", j.dump()}}, "x", 302, &notes);
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::NotBuiltYet);
      return e.diagnostics[0].message;
    }
    return std::string();
  };
  EXPECT_EQ(said(), "");
  EXPECT_EQ(notes, Texts{"the control token \"<mask>\" loses its lstrip, for which GGUF has no key"});
  json &own = j["added_tokens"][j["added_tokens"].size() - 2];
  for (const char *flag : {"lstrip", "rstrip", "single_word"}) {
    own[flag] = true;
    EXPECT_NE(said().find(fmt::format("the token \"<own>\" with {}", flag)), std::string::npos) << said();
    own[flag] = false;
  }
  auto around = [&](const std::vector<const char *> &names) {
    json single = json::array();
    for (const char *name : names)
      single.push_back(*name ? json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}}
                             : json{{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    j["post_processor"] = {{"type", "TemplateProcessing"}, {"single", single}};
    return said();
  };
  EXPECT_EQ(around({"<mask>", "", "<|endoftext|>"}), "");
  EXPECT_NE(around({"<mask>", "<mask>", ""}).find("post_processor"), std::string::npos);
  EXPECT_NE(around({"", "<|endoftext|>", "<|endoftext|>"}).find("post_processor"), std::string::npos);
  EXPECT_NE(around({"", "<mask>"}).find("post_processor"), std::string::npos) << "no end of text";
  j["post_processor"] = {{"type", "RobertaProcessing"}, {"sep", {"</s>", 2}}, {"cls", {"<s>", 0}}};
  EXPECT_NE(said().find("RobertaProcessing"), std::string::npos);
  j["pre_tokenizer"] = {{"type", "Metaspace"}};
  EXPECT_NE(said().find("SentencePiece"), std::string::npos) << said();
}

TEST_F(GgufModel, SplittingsThatLlamaCppLacksAreRefused) {
  const json base = json::parse(ours(300));
  const json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}},
             plain = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  auto pre = [&](const json &changes) {
    json j = base;
    j.merge_patch(changes);
    const std::string file = write("tokenizer.json", j.dump());
    try {
      return vocabularyIn(file, 300).pre;
    } catch (const UserError &e) {
      return fmt::format("error {}", int(e.diagnostics[0].code));
    }
  };
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  auto sequence = [](std::vector<json> steps) {
    return json{{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}}};
  };
  EXPECT_EQ(pre(json::object()), "gpt-2");
  EXPECT_EQ(pre(sequence({digits, level})), "smollm");
  EXPECT_EQ(pre(sequence({digits, plain})), "error 208");
  EXPECT_EQ(pre(sequence({level, digits})), "error 208");
  EXPECT_EQ(pre({{"pre_tokenizer", plain}}), "error 208");
  EXPECT_EQ(pre({{"pre_tokenizer", plain}, {"model", {{"merges", json::array()}}}}), "gpt-2") << "nothing merges";
  EXPECT_EQ(pre({{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", true}}}}), "error 208");
  EXPECT_EQ(pre({{"normalizer", {{"type", "NFC"}}}}), "error 208");
  EXPECT_EQ(pre({{"model", {{"ignore_merges", true}}}}), "error 208");
  EXPECT_EQ(pre({{"model", {{"byte_fallback", true}}}}), "error 208");
  EXPECT_EQ(pre({{"model", {{"type", "Unigram"}}}}), "error 208");
  EXPECT_EQ(pre({{"model", {{"vocab", {{"x", -1}}}}}}), "error 302");
  EXPECT_EQ(pre({{"model", {{"merges", {"one"}}}}}), "error 302");
  const std::string words = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|",
                    rest = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  auto split = [&](const std::string &numbers) {
    return json{{"type", "Split"}, {"pattern", {{"Regex", words + numbers + rest}}}, {"behavior", "Isolated"}};
  };
  EXPECT_EQ(pre(sequence({split("\\p{N}"), plain})), "qwen2");
  EXPECT_EQ(pre(sequence({split("\\p{N}{1,2}"), plain})), "error 208");
  json bloom = {{"type", "Split"}, {"pattern", {{"Regex", " ?[^(\\s|[.,!?…。，、।۔،])]+"}}}, {"behavior", "Isolated"}};
  EXPECT_EQ(pre(sequence({bloom, plain})), "bloom");
  EXPECT_EQ(pre(sequence({bloom, level})), "error 208");
  json other = sequence({bloom, plain});
  other["model"] = {{"ignore_merges", true}};
  EXPECT_EQ(pre(other), "error 208");
  other = sequence({bloom, plain});
  other["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(pre(other), "error 208");
  bloom["pattern"] = {{"Regex", " ?[^(\\s|.,!?…。，、।۔،)]+"}};
  EXPECT_EQ(pre(sequence({bloom, plain})), "bloom") << "as llama.cpp writes it";
  bloom["behavior"] = "Removed";
  EXPECT_EQ(pre(sequence({bloom, plain})), "error 208");
  json llama = sequence({split("\\p{N}{1,3}"), plain});
  EXPECT_EQ(pre(llama), "error 208") << "llama.cpp ignores merges with it";
  llama["model"] = {{"ignore_merges", true}};
  EXPECT_EQ(pre(llama), "llama-bpe");
  // Characters, not bytes.
  CharacterSet letters;
  letters.add("abc");
  write("tokenizer.json", Tokenizer::characters(letters).file().content);
  EXPECT_THROW(vocabularyIn(path("tokenizer.json"), 10), UserError);
  // Bytes end no text: a token that the model has beside them does.
  write("tokenizer.json", Tokenizer::bytes().file().content);
  EXPECT_THROW(vocabularyIn(path("tokenizer.json"), 256), UserError);
  EXPECT_EQ(vocabularyIn(path("tokenizer.json"), 257).eos, 256);
}

TEST_F(GgufModel, VocabulariesOfOthersAreChecked) {
  const GgufKeys keys = {{"tokenizer.ggml.model", std::string("llama")},
                         {"tokenizer.ggml.tokens", Texts{"<unk>", "<s>", "a"}},
                         {"tokenizer.ggml.scores", std::vector<float>{0, 0, -1}},
                         {"tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 1}},
                         {"tokenizer.ggml.bos_token_id", uint32_t(1)}};
  const auto v = readVocabulary(GgufFile(made(keys, {})));
  EXPECT_EQ(v->scores, (std::vector<float>{0, 0, -1}));
  EXPECT_TRUE(v->addBos && v->addSpacePrefix && !v->addEos) << "what llama.cpp takes for this model";
  EXPECT_EQ(v->bos, 1);
  EXPECT_EQ(v->unknown, -1);
  const std::string before = "504  is no valid GGUF file: ";
  const std::pair<std::pair<const char *, GgufValue>, const char *> cases[] = {
      {{"tokenizer.ggml.tokens", Texts{}}, "tokenizer.ggml.tokens is missing or empty"},
      {{"tokenizer.ggml.scores", std::vector<float>{0}}, "tokenizer.ggml.scores has 1 entries for 3 tokens"},
      {{"tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 7}},
       "tokenizer.ggml.token_type has 7, which is no type of token"},
      {{"tokenizer.ggml.token_type", std::vector<int32_t>{1}}, "tokenizer.ggml.token_type has 1 entries for 3 tokens"},
      {{"tokenizer.ggml.eos_token_id", uint32_t(3)}, "tokenizer.ggml.eos_token_id = 3 is no token"},
      {{"tokenizer.ggml.add_bos_token", uint32_t(1)},
       "tokenizer.ggml.add_bos_token is 1, where true or false is needed"}};
  for (const auto &[change, message] : cases)
    EXPECT_EQ(problems([&] { readVocabulary(GgufFile(made(with(keys, change.first, change.second), {}))); }),
              Texts{before + message});
}

}  // namespace
