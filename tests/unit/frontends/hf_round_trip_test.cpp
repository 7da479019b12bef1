// config.json of every family there and back. hf/NAME-4.json and hf/NAME-5.json are the same model as
// transformers 4.57.6 and 5.24.0 write it (tests/e2e/hf/make.py); hf/NAME.toml is what it is as [model]
// (GPTC_UPDATE_GOLDEN=1 writes it).
#include "frontends/hf/read.h"
#include "frontends/hf/write.h"
#include "frontends/hf_families.h"
#include "frontends/model_text.h"
#include "support/files.h"
#include "tests/support/oracles.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <unistd.h>

using namespace gptc;

namespace {

namespace fs = std::filesystem;
using hf::json;

const fs::path goldens = GPTC_SOURCE_DIR "/tests/unit/frontends/hf";

const char *const names[] = {"gpt2",    "llama",        "llama-odd", "llama-stretched", "llama-yarn",
                             "mistral", "mistral-full", "qwen2",     "qwen2-full",      "qwen3",
                             "smollm3", "olmo2",        "gpt_neox",  "gpt_neox-serial", "bloom",
                             "phi",     "gemma2",       "bert",      "modernbert"};

class HfRoundTrip : public testing::Test {
protected:
  fs::path dir;
  void SetUp() override {
    dir = fs::path(testing::TempDir()) / ("gptc-hf-" + std::to_string(::getpid()));
    fs::remove_all(dir);
    fs::create_directories(dir);
  }
  void TearDown() override { fs::remove_all(dir); }

  static std::string golden(const std::string &file) { return readInput((goldens / file).string(), "test"); }
  void write(const std::string &text) { std::ofstream(dir / "config.json") << text; }
  ModelConfig read(const std::string &text) {
    write(text);
    return readHfConfig(dir.string());
  }
};

TEST_F(HfRoundTrip, BothSpellingsAreTheSameModel) {
  for (const std::string name : names)
    for (const char *version : {"4", "5"}) {
      const ModelConfig m = read(golden(fmt::format("{}-{}.json", name, version)));
      if (std::getenv("GPTC_UPDATE_GOLDEN"))
        std::ofstream(goldens / (name + ".toml")) << modelText(m);
      EXPECT_EQ(modelText(m), golden(name + ".toml")) << name << version;
      const HfComparison same = compareHfConfig(dir.string(), m);
      EXPECT_TRUE(same.found);
      for (const Diagnostic &d : same.differences)
        ADD_FAILURE() << name << version << ": " << d.message;
    }
}

TEST_F(HfRoundTrip, WhatIsWrittenIsReadBack) {
  for (const std::string name : names) {
    const json there = json::parse(golden(name + "-5.json"));
    const ModelConfig m = read(there.dump());
    const std::string type = there.at("model_type");
    const hf::ModelValues values = hf::valuesOf(m);
    EXPECT_EQ(hf::differingKeys(*hf::findFamily(type), values), std::vector<std::string>{}) << name;
    const HfDescription d = describeForHf(m, "float32", {.bos = 1, .eos = {2, 3}, .pad = {}});
    EXPECT_EQ(d.family, name == "mistral-full" ? "llama" : type) << name;
    EXPECT_EQ(d.differing, std::vector<std::string>{}) << name;
    EXPECT_EQ(hf::valuesOf(read(d.config)), values) << name;
    const json written = json::parse(d.config);
    EXPECT_EQ(written.at("eos_token_id"), json({2, 3}));
    EXPECT_EQ(written.at("bos_token_id"), 1);
    EXPECT_EQ(written.at("torch_dtype"), "float32");
    EXPECT_EQ(written.at("architectures"),
              name == "mistral-full" ? json({"LlamaForCausalLM"}) : there.at("architectures"));
  }
}

// Skipped where transformers is missing.
TEST_F(HfRoundTrip, TransformersReadsWhatIsWritten) {
  for (const std::string name : names) {
    const std::string theirs = golden(name + "-4.json");
    std::ofstream(dir / (name + "-theirs.json")) << theirs;
    const ModelConfig m = read(theirs);
    if (name != "mistral-full")  // which is written as Llama's
      std::ofstream(dir / (name + "-ours.json")) << describeForHf(m, "float32", {}).config;
    else
      fs::remove(dir / (name + "-theirs.json"));
  }
  for (const std::string &version : test::transformersPaths()) {
    const test::Compared r =
        test::compareBy("tests/unit/frontends/hf/compare_configs.py", "'" + dir.string() + "'", version);
    if (r.isMissing())
      GTEST_SKIP() << "no Python with transformers: " << r.said;
    EXPECT_EQ(r.code, 0) << r.said;
    std::printf("%s", r.said.c_str());
  }
}

TEST_F(HfRoundTrip, WindowsAndAnglesOfModernBert) {
  const json good = json::parse(golden("modernbert-4.json")), newer = json::parse(golden("modernbert-5.json"));
  auto with = [](json config, const char *key, json value) {
    config[key] = std::move(value);
    return config.dump();
  };
  auto refused = [&](const std::string &text) -> std::string {
    try {
      read(text);
    } catch (const UserError &e) {
      return fmt::format("{} {}", int(e.diagnostics[0].code), e.diagnostics[0].message);
    }
    return "";
  };
  EXPECT_EQ(read(good.dump()).window, 9) << "8 to each side, and the token itself";
  EXPECT_EQ(read(with(good, "local_attention", 17)).window, 9);
  EXPECT_EQ(read(with(good, "global_attn_every_n_layers", 2)).layersWithoutWindow, (std::vector<int64_t>{0, 2}));
  // A window as long as the context hides nothing, and its layers still rotate as they did.
  ModelConfig m = read(with(good, "local_attention", 500));
  EXPECT_EQ(m.window, m.blockSize);
  EXPECT_EQ(m.layersWithoutWindow, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(m.windowRopeTheta, 10000);
  EXPECT_EQ(hf::valuesOf(read(describeForHf(m, "float32", {}).config)), hf::valuesOf(m));
  // All alike: then no key is needed for layers with a window.
  m = read(with(good, "local_rope_theta", nullptr));
  EXPECT_EQ(m.windowRopeTheta, 0);
  EXPECT_EQ(m.ropeTheta, 160000);
  m = read(with(good, "global_attn_every_n_layers", 1));
  EXPECT_EQ(m.window, 0);
  EXPECT_EQ(m.windowRopeTheta, 0);
  EXPECT_EQ(describeForHf(m, "float32", {}).family, "modernbert");
  // What one spelling cannot say is not exported.
  m = read(with(newer, "layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}));
  EXPECT_EQ(m.layersWithoutWindow, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(describeForHf(m, "float32", {}).differing, std::vector<std::string>{"layers_without_window"});

  const std::string file = (dir / "config.json").string() + ": ";
  EXPECT_EQ(refused(with(good, "local_attention", 1)),
            "203 " + file + "local_attention = 1 must be an integer of at least 2");
  EXPECT_EQ(refused(with(good, "local_rope_theta", 0.5)),
            "208 " + file + "local_rope_theta = 0.5, but only a base above 1 is built");
  EXPECT_EQ(refused(with(good, "hidden_activation", "silu")),
            "208 " + file + "hidden_activation = \"silu\", but only \"gelu\" is built");
  EXPECT_EQ(refused(with(good, "mlp_bias", true)), "208 " + file + "mlp_bias = true, but only false is built");
  EXPECT_EQ(refused(with(newer, "rope_parameters", {{"rope_theta", 500.0}})),
            "202 " + file + "unknown key rope_parameters.rope_theta = 500.0");
  EXPECT_EQ(refused(with(newer, "rope_parameters", {{"full_attention", {{"rope_type", "yarn"}, {"factor", 2.0}}}})),
            "208 " + file +
                "rope_parameters.full_attention.rope_type = \"yarn\", but only rope_type = \"default\" is built");
  EXPECT_EQ(refused(with(newer, "global_rope_theta", 500.0)),
            "209 " + file + "global_rope_theta = 500.0, but rope_parameters.full_attention.rope_theta = 160000.0");
}

TEST_F(HfRoundTrip, AMixThatNoFamilyHolds) {
  ModelConfig m = read(golden("llama-5.json"));
  m.position = Position::alibi;
  const HfDescription d = describeForHf(m, "float32", {});
  EXPECT_EQ(d.family, "");
  EXPECT_EQ(d.differing, std::vector<std::string>{"position"});
  EXPECT_EQ(json::parse(d.config).at("model_type"), "gptc");
  m = read(golden("gpt2-5.json"));
  m.bias = false;
  EXPECT_EQ(describeForHf(m, "float32", {}).differing, std::vector<std::string>{"bias"});
}

/// One change of a config.json, by a random generator.
void mutate(json &config, std::mt19937 &random) {
  auto below = [&](size_t n) { return random() % n; };
  auto at = config.begin();
  std::advance(at, below(config.size()));
  const json values[] = {nullptr,
                         true,
                         false,
                         0,
                         1,
                         -1,
                         3,
                         1e30,
                         0.5,
                         -2.5,
                         1ull << 63,
                         "",
                         "gelu",
                         "x",
                         "default",
                         json::array(),
                         json::array({0, 1, 0}),
                         json::object(),
                         {{"rope_type", "linear"}},
                         {{"rope_type", "yarn"}, {"factor", 2}},
                         {{"type", 3}},
                         json::array({"sliding_attention"})};
  switch (below(6)) {
  case 0:
    config.erase(at);
    return;
  case 1:
    config["x" + std::to_string(below(3))] = values[below(std::size(values))];
    return;
  case 2:
    if (at->is_number()) {
      *at = at->get<double>() * (double(below(5)) - 1);
      return;
    }
    [[fallthrough]];
  case 3: {
    const char *const keys[] = {"rope_scaling",
                                "rope_parameters",
                                "sliding_window",
                                "layer_types",
                                "head_dim",
                                "partial_rotary_factor",
                                "auto_map",
                                "quantization_config",
                                "no_rope_layers",
                                "use_sliding_window",
                                "max_window_layers",
                                "rope_theta",
                                "attention_bias",
                                "local_attention",
                                "local_rope_theta",
                                "global_rope_theta",
                                "global_attn_every_n_layers"};
    config[keys[below(std::size(keys))]] = values[below(std::size(values))];
    return;
  }
  default:
    *at = values[below(std::size(values))];
  }
}

TEST_F(HfRoundTrip, MutatedFilesAreRefusedOrMeanWhatTheySay) {
  std::mt19937 random(21);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string name = names[random() % std::size(names)];
    const json good = json::parse(golden(fmt::format("{}-{}.json", name, 4 + random() % 2)));
    const ModelConfig before = read(good.dump());
    json bad = good;
    for (size_t n = 1 + random() % 2; n; --n)
      mutate(bad, random);
    std::string text = bad.dump();
    if (random() % 10 == 0)
      text.resize(random() % text.size());
    else if (random() % 10 == 0)
      text[random() % text.size()] = char(random());
    write(text);
    const HfComparison compared = compareHfConfig(dir.string(), before);
    try {
      const ModelConfig m = readHfConfig(dir.string());
      // It is another model, or the same: then the comparison says no less.
      const hf::ModelValues there = hf::valuesOf(m), here = hf::valuesOf(before);
      bool same = true;
      for (const auto &[key, value] : here)
        same = same && (key == "block_size" || key == "window" || key == "layers_without_window" ||
                        hf::isSame(there.at(key), value));
      EXPECT_TRUE(same || !compared.differences.empty()) << text;
      EXPECT_TRUE(m.blockSize >= before.blockSize || !compared.differences.empty()) << text;
      // What was understood is written again, by the same family.
      EXPECT_NE(describeForHf(m, "float32", {}).family, "") << text;
    } catch (const UserError &e) {
      ++refused;
      EXPECT_FALSE(compared.differences.empty()) << text << "\n" << e.what();
      for (const Diagnostic &d : e.diagnostics) {
        EXPECT_NE(d.message.find("config.json"), std::string::npos) << d.message;
        EXPECT_FALSE(d.help.empty()) << d.message;
        EXPECT_LT(d.message.size(), 1200u);
      }
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
