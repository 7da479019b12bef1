// config.json beside weights from elsewhere. hf/*.json are as transformers 4.57.6 and 5.23.0 write them
// (save_pretrained of GPT2Config, LlamaConfig, MistralConfig): `default` without arguments, `small` with the sizes of
// the models below, the others with the arguments that their names say.
#include "frontends/hf_families.h"
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

const char *gpt2 = R"([model]
init_from = "hf:weights"
n_layer = 2
n_head = 4
n_embd = 32
vocab_size = 65
block_size = 16
[data]
train = "t.bin"
)";

const char *llama = R"([model]
init_from = "hf:weights"
preset = "llama"
n_layer = 2
n_head = 4
n_kv_head = 2
n_embd = 32
vocab_size = 65
block_size = 16
[data]
train = "t.bin"
)";

class HfConfig : public testing::Test {
protected:
  std::filesystem::path dir;
  void SetUp() override {
    dir = std::filesystem::path(testing::TempDir()) / ("gptc-frontends-" + std::to_string(::getpid()));
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir / "weights");
  }
  void TearDown() override { std::filesystem::remove_all(dir); }

  void write(const std::string &name, const std::string &text) { std::ofstream(dir / name) << text; }
  static std::string written(const std::string &name) {
    return readInput(GPTC_SOURCE_DIR "/tests/unit/frontends/hf/" + name + ".json", "test");
  }

  /// What is wrong with `model`, with `config` beside its weights.
  std::vector<Diagnostic> errors(const std::string &model, const std::string &config,
                                 const std::vector<std::string> &settings = {}) {
    write("weights/config.json", config);
    write("model.toml", model);
    try {
      warnings = loadConfig((dir / "model.toml").string(), settings, [](const std::string &) { return 0; }).warnings;
    } catch (const UserError &e) {
      return e.diagnostics;
    }
    return {};
  }
  std::vector<std::string> messages(const std::string &model, const std::string &config,
                                    const std::vector<std::string> &settings = {}) {
    std::vector<std::string> all;
    const std::string before = (dir / "weights/config.json").string() + ": ";
    for (const Diagnostic &d : errors(model, config, settings)) {
      EXPECT_EQ(d.message.rfind(before, 0), 0u) << d.message;
      all.push_back(fmt::format("{} {}", int(d.code), d.message.substr(std::min(before.size(), d.message.size()))));
      EXPECT_FALSE(d.help.empty()) << d.message;
    }
    return all;
  }
  using Messages = std::vector<std::string>;
  std::vector<std::string> warnings;
};

TEST_F(HfConfig, TakesWhatTransformersWrite) {
  for (const char *version : {"4", "5"}) {
    EXPECT_EQ(messages(gpt2, written(fmt::format("gpt2-small-{}", version))), Messages{}) << version;
    EXPECT_EQ(messages(llama, written(fmt::format("llama-small-{}", version))), Messages{}) << version;
    EXPECT_EQ(messages("[model]\npreset = \"gpt2\"\ninit_from = \"hf:weights\"\n[data]\ntrain = \"t\"\n",
                       written(fmt::format("gpt2-default-{}", version))),
              Messages{})
        << version;
    const std::vector<std::string> seven = {"model.preset=llama", "model.n_layer=32",    "model.n_head=32",
                                            "model.n_embd=4096",  "model.norm_eps=1e-6", "model.vocab_size=32000",
                                            "model.n_kv_head=32", "model.ffn_dim=11008"};
    EXPECT_EQ(messages(llama, written(fmt::format("llama-default-{}", version)), seven), Messages{}) << version;
    std::vector<std::string> mistral = seven;
    mistral.insert(mistral.end(), {"model.n_kv_head=8", "model.ffn_dim=14336"});
    EXPECT_EQ(messages(llama, written(fmt::format("mistral-default-{}", version)), mistral), Messages{}) << version;
    EXPECT_TRUE(warnings.empty());
  }
}

TEST_F(HfConfig, TellsEachDifferenceWithBothValues) {
  struct Case {
    const char *model, *file, *key;
    json value;
    std::string message;
  };
  for (const Case &c : {
           Case{gpt2, "gpt2-small-4", "n_layer", 3, "209 n_layer = 3, but model.n_layer = 2"},
           {gpt2, "gpt2-small-5", "n_head", 8, "209 n_head = 8, but model.n_head = 4"},
           {gpt2, "gpt2-small-4", "n_embd", 64, "209 n_embd = 64, but model.n_embd = 32"},
           {gpt2, "gpt2-small-4", "vocab_size", 64, "209 vocab_size = 64, but model.vocab_size = 65"},
           {gpt2, "gpt2-small-4", "n_positions", 8, "209 n_positions = 8, but model.block_size = 16"},
           {gpt2, "gpt2-small-4", "n_inner", 64, "209 n_inner = 64, but model.ffn_dim = 128"},
           {gpt2, "gpt2-small-4", "activation_function", "gelu",
            "209 activation_function = \"gelu\", but model.activation = \"gelu_tanh\""},
           {gpt2, "gpt2-small-4", "activation_function", "quick_gelu",
            "208 activation_function = \"quick_gelu\", but only \"gelu_new\", \"gelu\", \"relu\", \"relu2\" or "
            "\"silu\" is built"},
           {gpt2, "gpt2-small-4", "layer_norm_epsilon", 1e-12,
            "209 layer_norm_epsilon = 1e-12, but model.norm_eps = 1e-05"},
           {gpt2, "gpt2-small-4", "scale_attn_weights", false,
            "208 scale_attn_weights = false, but only true is built"},
           {gpt2, "gpt2-small-4", "scale_attn_by_inverse_layer_idx", true,
            "208 scale_attn_by_inverse_layer_idx = true, but only false is built"},
           {gpt2, "gpt2-small-4", "add_cross_attention", true,
            "208 add_cross_attention = true, but only false is built"},
           {gpt2, "gpt2-small-5", "tie_word_embeddings", false,
            "209 tie_word_embeddings = false, but model.tie_embeddings = true"},
           {gpt2, "gpt2-small-4", "sliding_window", 8,
            "208 sliding_window = 8, but model_type = \"gpt2\" attends to all of model.block_size = 16"},
           {gpt2,
            "gpt2-small-4",
            "quantization_config",
            {{"bits", 4}},
            "208 quantization_config = {\"bits\":4}, but only a model without it is built"},
           {gpt2, "gpt2-small-4", "logit_scale", 2.0, "202 unknown key logit_scale = 2.0"},
           {llama, "llama-small-4", "num_hidden_layers", 3, "209 num_hidden_layers = 3, but model.n_layer = 2"},
           {llama, "llama-small-4", "num_key_value_heads", 4, "209 num_key_value_heads = 4, but model.n_kv_head = 2"},
           {llama, "llama-small-4", "num_key_value_heads", nullptr,
            "209 no num_key_value_heads, which in model_type = \"llama\" means 4, but model.n_kv_head = 2"},
           {llama, "llama-small-4", "intermediate_size", 128, "209 intermediate_size = 128, but model.ffn_dim = 96"},
           {llama, "llama-small-4", "head_dim", 16, "209 head_dim = 16, but model.head_dim = 8"},
           {llama, "llama-small-4", "hidden_act", "gelu",
            "209 hidden_act = \"gelu\", but model.activation = \"swiglu\""},
           {llama, "llama-small-4", "hidden_act", "relu",
            "208 hidden_act = \"relu\", but only \"silu\", \"gelu\" or \"gelu_pytorch_tanh\" is built"},
           {llama, "llama-small-4", "rms_norm_eps", 0.1, "209 rms_norm_eps = 0.1, but model.norm_eps = 1e-05"},
           {llama, "llama-small-5", "rms_norm_eps", nullptr,
            "209 no rms_norm_eps, which in model_type = \"llama\" means 1e-06, but model.norm_eps = 1e-05"},
           {llama, "llama-small-4", "tie_word_embeddings", true,
            "209 tie_word_embeddings = true, but model.tie_embeddings = false"},
           {llama, "llama-small-4", "mlp_bias", true, "209 mlp_bias = true, but model.mlp_bias = false"},
           {llama, "llama-small-4", "max_position_embeddings", 8,
            "209 max_position_embeddings = 8, but model.block_size = 16"},
           {llama, "llama-small-4", "rope_theta", 5e5, "209 rope_theta = 500000.0, but model.rope_theta = 10000.0"},
           {llama,
            "llama-small-4",
            "rope_scaling",
            {{"type", "dynamic"}, {"factor", 4.0}},
            "208 rope_scaling.type = \"dynamic\", but only rope_type = \"default\", \"linear\", \"llama3\" or \"yarn\" "
            "is "
            "built"},
           {llama,
            "llama-small-4",
            "rope_parameters",
            {{"rope_type", "default"}, {"rope_theta", 5e5}},
            "209 rope_theta = 10000.0, but rope_parameters.rope_theta = 500000.0"},
           {llama,
            "llama-small-5",
            "rope_parameters",
            {{"rope_type", "default"}, {"rope_theta", 1e6}},
            "209 rope_parameters.rope_theta = 1000000.0, but model.rope_theta = 10000.0"},
           {llama,
            "llama-small-5",
            "rope_parameters",
            {{"rope_type", "default"}, {"twist", 1}},
            "202 unknown key rope_parameters.twist = 1"},
           {llama, "llama-small-5", "partial_rotary_factor", 0.5,
            "208 partial_rotary_factor = 0.5, but only 1.0 is built"},
           {llama,
            "llama-small-5",
            "layer_types",
            {"full_attention", "linear_attention"},
            "208 layer_types = [\"full_attention\",\"linear_attention\"], but only \"full_attention\" or "
            "\"sliding_attention\" is built"},
           {llama, "llama-small-4", "num_attention_heads", "4",
            "209 num_attention_heads = \"4\", but model.n_head = 4"},
       }) {
    json config = parseJson<json>(written(c.file));
    config[c.key] = c.value;
    EXPECT_EQ(messages(c.model, config.dump()), Messages{c.message}) << c.key;
  }
}

TEST_F(HfConfig, ContextsThatAreTooLongAreCut) {
  auto import = [&](const char *name, const char *key, int64_t n, int64_t &context) {
    json config = parseJson<json>(written(name));
    config[key] = n;
    write("weights/config.json", config.dump());
    return readHfConfig((dir / "weights").string(), &context);
  };
  int64_t context = 0;
  const ModelConfig m = import("llama-small-5", "max_position_embeddings", 1 << 20, context);
  EXPECT_EQ(m.blockSize, kMostBlockSize);
  EXPECT_EQ(context, 1 << 20);
  EXPECT_TRUE(compareHfConfig((dir / "weights").string(), m).differences.empty());
  // A table of positions has that many rows.
  EXPECT_THROW(import("gpt2-small-5", "n_positions", 1 << 20, context), UserError);
}

TEST_F(HfConfig, TypesOfLayersWinOverTheNumberOfThoseWithoutAWindow) {
  // transformers writes max_window_layers = 28 beside any layer_types.
  json config = parseJson<json>(written("qwen2-5"));
  const int64_t layers = config.at("num_hidden_layers");
  config["use_sliding_window"] = true;
  config["sliding_window"] = 8;
  config["max_window_layers"] = 28;
  std::vector<std::string> types;
  std::vector<int64_t> full;
  for (int64_t i = 0; i < layers; ++i) {
    types.emplace_back(i % 2 ? "full_attention" : "sliding_attention");
    if (i % 2)
      full.push_back(i);
  }
  config["layer_types"] = types;
  write("weights/config.json", config.dump());
  const ModelConfig m = readHfConfig((dir / "weights").string());
  EXPECT_EQ(m.window, 8);
  EXPECT_EQ(m.layersWithoutWindow, full);
}

TEST_F(HfConfig, SlicesOfBloomLeaveOutBiases) {
  json config = parseJson<json>(written("bloom-5"));
  auto refused = [&](int64_t slices) -> std::string {
    config["pretraining_tp"] = slices;
    config["slow_but_exact"] = true;
    write("weights/config.json", config.dump());
    try {
      readHfConfig((dir / "weights").string());
    } catch (const UserError &e) {
      return e.diagnostics.at(0).message;
    }
    return "";
  };
  EXPECT_EQ(refused(1), "");
  EXPECT_EQ(refused(2), (dir / "weights/config.json").string() +
                            ": slow_but_exact = true with pretraining_tp = 2, but only false is built");
}

TEST_F(HfConfig, ConfigsOfTransformersWithOtherRotations) {
  const std::vector<std::string> seven = {"model.n_layer=32",      "model.n_head=32",    "model.n_embd=4096",
                                          "model.norm_eps=1e-6",   "model.n_kv_head=32", "model.ffn_dim=11008",
                                          "model.vocab_size=32000"};
  for (const char *version : {"4", "5"}) {
    for (const char *kind : {"theta", "linear", "llama3"}) {
      const Messages all = messages(llama, written(fmt::format("llama-{}-{}", kind, version)), seven);
      ASSERT_FALSE(all.empty()) << kind << version;
      for (const std::string &m : all)
        EXPECT_EQ(m.rfind("209 rope_", 0), 0u) << m;
    }
  }
}

TEST_F(HfConfig, TellsAllAtOnceWhereInitFromStands) {
  json config = parseJson<json>(written("llama-small-5"));
  config["num_attention_heads"] = 8;
  config["rms_norm_eps"] = 0.1;
  config["mystery"] = "x";
  const std::vector<Diagnostic> all = errors(llama, config.dump());
  ASSERT_EQ(all.size(), 3u);
  for (const Diagnostic &d : all) {
    EXPECT_EQ(d.where.line, 2u);
    EXPECT_EQ(d.where.column, 13u);
  }
}

TEST_F(HfConfig, AnotherFamily) {
  const Messages all = messages(gpt2, written("llama-small-4"));
  for (const char *message : {"209 model_type = \"llama\" has norm = \"rmsnorm\", but model.norm = \"layernorm\"",
                              "209 model_type = \"llama\" has position = \"rope\", but model.position = \"learned\"",
                              "209 model_type = \"llama\" has bias = false, but model.bias = true"})
    EXPECT_NE(std::find(all.begin(), all.end(), message), all.end()) << message;
  EXPECT_EQ(messages(gpt2, written("gpt2-small-4"), {"model.n_kv_head=2"}),
            Messages{"209 model_type = \"gpt2\" has n_kv_head = 4, but model.n_kv_head = 2"});
  EXPECT_EQ(messages(gpt2, R"({"model_type": "falcon"})"), Messages{"208 model_type = \"falcon\" is not built yet"});
}

TEST_F(HfConfig, WhatCannotChangeALogitIsPassedOver) {
  json config = parseJson<json>(written("gpt2-small-4"));
  config.update({{"torch_dtype", "bfloat16"},
                 {"dtype", "float16"},
                 {"use_cache", false},
                 {"initializer_range", 0.5},
                 {"attn_pdrop", 0.5},
                 {"reorder_and_upcast_attn", true},
                 {"pad_token_id", 3},
                 {"task_specific_params", {{"text-generation", {{"max_length", 50}}}}},
                 {"n_ctx", 16},
                 {"quantization_config", nullptr},
                 {"sliding_window", nullptr},
                 {"architectures", {"Another"}},
                 {"transformers_version", "9"}});
  EXPECT_EQ(messages(gpt2, config.dump()), Messages{});
  config["sliding_window"] = 16;  // as long as the context
  EXPECT_EQ(messages(gpt2, config.dump()), Messages{});
  config["sliding_window"] = 8;
  config["use_sliding_window"] = false;
  EXPECT_EQ(messages(gpt2, config.dump()), Messages{});
  config = parseJson<json>(written("llama-small-4"));
  config["rope_scaling"] = {{"type", "default"}};
  config["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(messages(llama, config.dump()), Messages{});
}

TEST_F(HfConfig, NoneIsAWarning) {
  write("model.toml", gpt2);
  auto load = [&](const std::vector<std::string> &settings = {}, ConfigPurpose purpose = ConfigPurpose::run) {
    return loadConfig((dir / "model.toml").string(), settings, [](const std::string &) { return 0; }, purpose).warnings;
  };
  ASSERT_EQ(load().size(), 1u);
  EXPECT_NE(load()[0].find("weights/config.json"), std::string::npos) << load()[0];
  EXPECT_TRUE(load({}, ConfigPurpose::forecast).empty());
  EXPECT_TRUE(load({"model.init_from=scratch"}).empty());
  EXPECT_TRUE(load({"model.init_from=ckpt:weights"}).empty());
  write("weights/manifest.json", "{}");  // a checkpoint of ours says more
  EXPECT_TRUE(load().empty());
}

TEST_F(HfConfig, StandsBesideAFileOfWeightsToo) {
  write("weights/model.safetensors", "");
  json config = parseJson<json>(written("gpt2-small-4"));
  config["n_layer"] = 3;
  std::string model = gpt2;
  model.replace(model.find("hf:weights"), 10, "hf:weights/model.safetensors");
  EXPECT_EQ(messages(model, config.dump()).size(), 1u);
  model.replace(model.find("hf:weights/model.safetensors"), 28, "ckpt:weights");
  EXPECT_EQ(messages(model, config.dump()).size(), 1u);
}

TEST_F(HfConfig, NullIsNoWindow) {
  json config = parseJson<json>(written("mistral-default-4"));
  const std::vector<std::string> size = {"model.n_layer=32",    "model.n_head=32",      "model.n_kv_head=8",
                                         "model.n_embd=4096",   "model.norm_eps=1e-6",  "model.vocab_size=32000",
                                         "model.ffn_dim=14336", "model.block_size=8192"};
  config["sliding_window"] = nullptr;
  EXPECT_EQ(messages(llama, config.dump(), size), Messages{});
  config.erase("sliding_window");
  EXPECT_EQ(messages(llama, config.dump(), size).size(), 1u);
}

TEST_F(HfConfig, OfAFolderThatIsNotThere) {
  write("config.json", R"({"model_type": "falcon"})");  // of something else
  std::filesystem::remove_all(dir / "weights");
  write("model.toml", gpt2);
  const auto loaded = loadConfig((dir / "model.toml").string(), {}, [](const std::string &) { return 0; });
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_NE(loaded.warnings[0].find("weights/config.json"), std::string::npos) << loaded.warnings[0];
}

TEST_F(HfConfig, Damaged) {
  const std::string deep = "{\"x\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
  for (const char *text : {"", "[]", "{", "{\"model_type\": \"gpt2\"", "nan", "\xff", deep.c_str()}) {
    const std::vector<Diagnostic> all = errors(gpt2, text);
    ASSERT_EQ(all.size(), 1u) << text;
    EXPECT_EQ(all[0].code, ErrorCode::CheckpointDamaged) << text;
    EXPECT_EQ(all[0].where.line, 2u);
  }
  EXPECT_EQ(int(errors(gpt2, "{}").at(0).code), 207);
  EXPECT_EQ(int(errors(gpt2, "{\"model_type\": 3}").at(0).code), 208);
  EXPECT_EQ(int(errors(gpt2, "{\"model_type\": [\"gpt2\"]}").at(0).code), 208);
  std::filesystem::remove(dir / "weights/config.json");
  std::filesystem::create_directories(dir / "weights/config.json");
  EXPECT_EQ(int(errors(gpt2, "").at(0).code), int(ErrorCode::FileMissing));
}

}  // namespace
