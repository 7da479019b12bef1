#include "frontends/other_names.h"
#include "frontends/toml_config.h"
#include "tests/support/content.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <unistd.h>

using namespace gptc;

namespace {

const char *small = R"([model]
n_layer = 2
n_head = 4
n_embd = 32
vocab_size = 65
block_size = 16
[data]
train = "data/train.bin"
)";

class ConfigTest : public testing::Test {
protected:
  std::filesystem::path dir;
  void SetUp() override {
    dir = std::filesystem::path(testing::TempDir()) / ("gptc-frontends-" + std::to_string(::getpid()));
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
  }
  void TearDown() override { std::filesystem::remove_all(dir); }

  std::string write(const std::string &name, const std::string &text) {
    std::ofstream(dir / name) << text;
    return (dir / name).string();
  }
  static int64_t noTokenizer(const std::string &) { throw UserError(ErrorCode::FileMissing, "no tokenizer"); }
  Config load(const std::string &text, const std::vector<std::string> &settings = {}) {
    return loadConfig(write("model.toml", text), settings, noTokenizer);
  }
  std::vector<Diagnostic> errors(const std::string &text, const std::vector<std::string> &settings = {}) {
    try {
      load(text, settings);
    } catch (const UserError &e) {
      return e.diagnostics;
    }
    return {};
  }
  /// "code line column" of each error.
  std::vector<std::string> places(const std::string &text, const std::vector<std::string> &settings = {}) {
    std::vector<std::string> out;
    for (const Diagnostic &d : errors(text, settings))
      out.push_back(fmt::format("{} {}:{}", int(d.code), d.where.line, d.where.column));
    return out;
  }
  using Places = std::vector<std::string>;
};

// Keys that follow from others, and that `gptc config` shows as they are.
TEST_F(ConfigTest, SizesOfHeadsAndBiasesFollow) {
  ModelConfig m = load(small).model;
  EXPECT_EQ(m.headDim, 8);
  EXPECT_EQ(m.rotaryDim, 8);
  EXPECT_TRUE(*m.qkvBias && *m.attentionBias && *m.mlpBias && *m.normBias);
  m = load(small, {"model.bias=false", "model.qkv_bias=true"}).model;
  EXPECT_TRUE(*m.qkvBias);
  EXPECT_FALSE(*m.attentionBias || *m.mlpBias || *m.normBias);
  EXPECT_FALSE(*load(small, {"model.norm=rmsnorm"}).model.normBias);
  m = load(small, {"model.n_embd=30", "model.head_dim=12", "model.position=rope", "model.layers_without_rope=[0, 1]"})
          .model;
  EXPECT_EQ(m.headDim, 12) << "which need not divide the width";
  EXPECT_EQ(m.rotaryDim, 12);
  EXPECT_EQ(m.layersWithoutRope, (std::vector<int64_t>{0, 1}));
}

TEST_F(ConfigTest, KeysOfAModelThatContradictEachOther) {
  using S = std::vector<std::string>;
  const std::pair<S, Places> cases[] = {
      {{"model.position=rope", "model.rotary_dim=3"}, {"206 1:18"}},
      {{"model.position=rope", "model.rotary_dim=10"}, {"206 1:18"}},
      {{"model.position=rope", "model.head_dim=9"}, {"206 1:16"}},
      {{"model.position=rope", "model.head_dim=9", "model.rotary_dim=4"}, {}},
      {{"model.rotary_dim=8", "model.rope_theta=10000", "model.window=0", "model.norm_position=pre"}, {}},  // defaults
      {{"model.rotary_dim=4"}, {"209 1:18"}},
      {{"model.position=rope", "model.rope_scaling=linear", "model.rope_beta_slow=2"}, {"209 1:22"}},
      {{"model.position=rope", "model.rope_scaling=linear"}, {}},
      {{"model.window=8", "model.layers_without_window=[1]"}, {}},
      {{"model.window=8", "model.layers_without_window=[2]"}, {"204 1:29"}},
      {{"model.window=8", "model.layers_without_window=[1, 0]"}, {"204 1:29"}},
      {{"model.window=8", "model.causal=false"}, {}},
      {{"model.window=8", "model.position=rope", "model.window_rope_theta=500"}, {}},
      {{"model.window=8", "model.position=rope", "model.window_rope_theta=0.5"}, {"204 1:25"}},
      {{"model.window=8", "model.window_rope_theta=500"}, {"209 1:25"}},
      {{"model.position=rope", "model.window_rope_theta=500"}, {"209 1:25"}},
      {{"model.first_norm=false"}, {}},
      {{"model.first_norm=false", "model.norm_position=output"}, {"209 1:18"}},
      {{"model.first_norm=false", "model.parallel_residual=true", "model.shared_norm=true"}, {"209 1:18"}},
      {{"model.head_transform=true", "model.activation=geglu"}, {}},
      {{"model.shared_norm=true", "model.parallel_residual=true"}, {}},
  };
  for (const auto &[settings, expected] : cases) {
    Places found;
    for (const Diagnostic &d : errors(small, settings))
      if (d.code != ErrorCode::NotBuiltYet)
        found.push_back(fmt::format("{} {}:{}", int(d.code), d.where.line, d.where.column));
    EXPECT_EQ(found, expected) << fmt::format("{}", fmt::join(settings, " "));
  }
}

TEST_F(ConfigTest, FillsDefaults) {
  Config c = load(small);
  EXPECT_EQ(c.name, "model");
  EXPECT_EQ(c.run.outDir, (dir / "out/model").string());
  EXPECT_EQ(c.run.trainData, (dir / "data/train.bin").string());
  EXPECT_EQ(c.model.nKvHead, 4);
  EXPECT_EQ(c.model.ffnDim, 128);
  EXPECT_EQ(c.model.norm, Norm::layernorm);
  EXPECT_EQ(c.train.globalBatchTokens, 16384);
  EXPECT_EQ(c.train.microBatch * c.train.accumulate * 16, 16384);
  EXPECT_EQ(c.train.microBatch, 512);  // 8192 tokens
}

TEST_F(ConfigTest, TakesThePreset) {
  Config c = load("[model]\npreset = \"gpt2\"\nn_layer = 6\n[data]\ntrain = \"/t.bin\"\n");
  EXPECT_EQ(c.model.nLayer, 6);
  EXPECT_EQ(c.model.nEmbd, 768);
  EXPECT_EQ(c.model.vocabSize, 50257);
  EXPECT_EQ(c.run.trainData, "/t.bin");
}

TEST_F(ConfigTest, PresetsAreFamilies) {
  auto preset = [&](const std::string &name, const std::string &more = "") {
    return load("[model]\npreset = \"" + name + "\"\n" + more + "[data]\ntrain = \"/t.bin\"\n").model;
  };
  const ModelConfig llama = preset("llama"), bloom = preset("bloom"), encoder = preset("encoder");
  auto choices = [](const ModelConfig &m) {
    return fmt::format("{} {} {}", nameOf(m.norm), nameOf(m.activation), nameOf(m.position));
  };
  EXPECT_EQ(choices(llama), "rmsnorm swiglu rope");
  EXPECT_FALSE(llama.bias || llama.tieEmbeddings || llama.embeddingNorm);
  EXPECT_EQ(llama.ffnDim, 2048);
  EXPECT_EQ(choices(bloom), "layernorm gelu_tanh alibi");
  EXPECT_TRUE(bloom.bias && bloom.tieEmbeddings && bloom.embeddingNorm && bloom.causal);
  EXPECT_EQ(choices(encoder), "layernorm gelu learned");
  EXPECT_FALSE(encoder.causal);
  EXPECT_EQ(encoder.vocabSize, 50258);
  EXPECT_EQ(encoder.maskToken(), 50257);
  EXPECT_EQ(preset("llama", "bias = true\nposition = \"alibi\"\n").position, Position::alibi);
  EXPECT_TRUE(preset("llama", "bias = true\n").bias);
}

TEST_F(ConfigTest, GatedHiddenLayersKeepTheNumberOfParameters) {
  ModelConfig m;
  m.activation = Activation::swiglu;
  for (auto [width, hidden] : {std::pair<int64_t, int64_t>{4096, 11008}, {768, 2048}, {384, 1024}, {128, 352}}) {
    m.nEmbd = width;
    EXPECT_EQ(defaultFfnDim(m), hidden);
  }
  m.activation = Activation::gelu;
  EXPECT_EQ(defaultFfnDim(m), 512);
}

TEST_F(ConfigTest, ShapesThatFamiliesCannotHave) {
  // 36 / 4 heads of 9 elements.
  EXPECT_EQ(places(small, {"model.n_embd=36", "model.position=rope"}), (Places{"206 3:10"}));
  EXPECT_EQ(places(small, {"model.n_embd=36", "model.position=alibi"}), (Places{}));
  EXPECT_EQ(places(small, {"model.n_kv_head=8"}), (Places{"206 1:17"}));
  EXPECT_EQ(places(small, {"model.n_kv_head=3"}), (Places{"206 1:17"}));
  EXPECT_EQ(places(small, {"model.causal=false", "eval.sample_every=10", "data.tokenizer=t"}), (Places{"209 1:19"}));
}

TEST_F(ConfigTest, AnEncodersMaskIsOneTokenMore) {
  auto vocab = [&](const std::string &text) {
    return loadConfig(write("model.toml", text), {"model.causal=false"}, [](const std::string &) { return 65; })
        .model.vocabSize;
  };
  std::string text = std::string(small) + "tokenizer = \"model.toml\"\n";
  try {
    vocab(text);  // vocab_size = 65 has no room for it
    FAIL();
  } catch (const UserError &e) {
    EXPECT_EQ(int(e.diagnostics[0].code), 206);
  }
  text.erase(text.find("vocab_size = 65\n"), 16);
  EXPECT_EQ(vocab(text), 66);
}

TEST_F(ConfigTest, ExtendsOverridesAndPathsStayWithTheirFile) {
  std::filesystem::create_directories(dir / "base");
  write("base/base.toml", std::string(small) + "val = \"val.bin\"\n[train]\nsteps = 5\nseed = 7\n");
  Config c = load("extends = \"base/base.toml\"\n[train]\nsteps = 9\n", {"train.seed=8", "data.tokenizer=tok.json"});
  EXPECT_EQ(c.run.steps, 9);
  EXPECT_EQ(c.run.seed, 8);
  EXPECT_EQ(c.run.valData, (dir / "base/val.bin").string());
  EXPECT_EQ(c.run.tokenizer, "tok.json");
  EXPECT_EQ(load(small, {"model.init_from=hf:gpt2"}).run.initFrom, "hf:gpt2");
  EXPECT_EQ(load("extends = \"base/base.toml\"\n[model]\ninit_from = \"ckpt:run\"\n").run.initFrom,
            "ckpt:" + (dir / "run").string());
}

TEST_F(ConfigTest, ExtendsInACircle) {
  write("a.toml", "extends = \"model.toml\"\n");
  EXPECT_EQ(places("extends = \"a.toml\"\n"), (Places{"206 1:11"}));
  EXPECT_EQ(places("extends = \"model.toml\"\n"), (Places{"206 1:11"}));
  EXPECT_EQ(places("\nextends = \"none.toml\"\n"), (Places{"301 2:11"}));
  EXPECT_EQ(places("extends = 3\n"), (Places{"203 1:11"}));
}

TEST_F(ConfigTest, SettingsAreTomlOrBareWords) {
  Config c = load(small, {"name=my-run", "optimizer.betas=[0.8, 0.99]", "optimizer.lr=1e-3", "model.bias=false",
                          "eval.sample_prompt=It is a truth", "eval.sample_prompt = \"quoted\""});
  EXPECT_EQ(c.name, "my-run");
  EXPECT_EQ(c.optimizer.beta1, 0.8);
  EXPECT_EQ(c.optimizer.beta2, 0.99);
  EXPECT_EQ(c.optimizer.lr, 1e-3);
  EXPECT_FALSE(c.model.bias);
  EXPECT_EQ(c.run.samplePrompt, "quoted");
  EXPECT_EQ(places(small, {"train.steps=0"}), (Places{"204 1:13"}));
  EXPECT_EQ(places(small, {"train.stepz=1"}), (Places{"202 1:1"}));
  EXPECT_EQ(places(small, {"train.steps"}), (Places{"101 0:0"}));
  EXPECT_EQ(places(small, {"log.trace_steps=[3, 2]"}), (Places{"204 1:17"}));
  EXPECT_EQ(places(small, {"model.init_from=hf:"}), (Places{"205 1:17"}));
  EXPECT_EQ(places(small, {"=3"}), (Places{"101 0:0"}));
  EXPECT_EQ(places(small, {"extends=base.toml"}), (Places{"101 1:1"}));
  for (const char *big : {"train.steps=99999999999999999999", "train.seed=-9223372036854775809"})
    EXPECT_EQ(places(small, {big}), (Places{"204 0:0"})) << big;
  EXPECT_EQ(places(small, {"train.steps=1e99"}), (Places{"203 1:13"}));
}

TEST_F(ConfigTest, ReportsEveryErrorAtItsPlace) {
  EXPECT_EQ(places(R"([model]
n_layer = "two"
n_head = 3
n_embd = 32
vocab_size = 1
block_size = 16
dropout = nan
activation = "gleu_tanh"
position = "rotary"
n_layers = 3
[data]
train = "t.bin"
[train]
steps = 1.5
seed = -1
[optimizer]
betas = [0.9]
eps = 0
[parallell]
tensor = 2
)"),
            (Places{"203 2:11", "206 3:10", "204 5:14", "204 7:11", "205 8:14", "205 9:12", "202 10:1", "203 14:9",
                    "204 15:8", "203 17:9", "204 18:7", "202 19:2"}));
}

TEST_F(ConfigTest, SyntaxErrorsHaveAPlace) {
  EXPECT_EQ(places("[model]\nn_layer = = 2\n")[0].substr(0, 5), "201 2");
  EXPECT_EQ(places("[model]\nn_layer = 1\nn_layer = 2\n")[0].substr(0, 5), "201 3");
}

TEST_F(ConfigTest, NearestNames) {
  auto labelOf = [&](const std::string &line) { return errors(std::string(small) + line).at(0).label; };
  EXPECT_EQ(labelOf("[train]\nstep = 1\n"), "did you mean train.steps?");
  EXPECT_EQ(labelOf("[train]\nlr = 1\n"), "did you mean optimizer.lr?");
  EXPECT_EQ(labelOf("[optimizer]\nlearning_rate = 1\n"), "did you mean optimizer.lr?");
  EXPECT_EQ(labelOf("[train]\nlearning_rate = 1\n"), "did you mean optimizer.lr?");
  EXPECT_EQ(labelOf("[train]\nlearnin_rate = 1\n"), "");
  EXPECT_EQ(labelOf("[train]\nevery = 1\n"), "did you mean eval.every or checkpoint.every or log.every?");
  EXPECT_EQ(labelOf("[train]\nbatch_size = 1\n"), "did you mean train.micro_batch?");
  EXPECT_EQ(labelOf("[train]\nmax_iters = 1\n"), "did you mean train.steps?");
  EXPECT_EQ(labelOf("[train]\nweight_decy = 1\n"), "did you mean optimizer.weight_decay?");
  EXPECT_EQ(labelOf("[eval]\nMax-Seq-Len = 1\n"), "did you mean model.block_size?");
  EXPECT_EQ(labelOf("[training]\nlr = 1\n"), "did you mean [train]?");
  for (auto [theirs, ours] : {std::pair{"num_hidden_layers", "n_layer"},
                              {"hidden_size", "n_embd"},
                              {"n_heads", "n_head"},
                              {"num_key_value_heads", "n_kv_head"},
                              {"intermediate_size", "ffn_dim"},
                              {"max_seq_len", "block_size"},
                              {"resid_pdrop", "dropout"},
                              {"rms_norm_eps", "norm_eps"},
                              {"tie_word_embeddings", "tie_embeddings"}})
    EXPECT_EQ(errors(small, {fmt::format("model.{}=1", theirs)}).at(0).label,
              fmt::format("did you mean model.{}?", ours));
  EXPECT_EQ(errors(small, {"learning_rate=1"}).at(0).label, "did you mean optimizer.lr?");
  const Diagnostic part = errors(small, {"model.rotary_pct=0.25"}).at(0);
  EXPECT_EQ(part.label, "did you mean model.rotary_dim?");
  EXPECT_EQ(part.help.size(), 1u);
  EXPECT_EQ(labelOf("[optimiser]\nlr = 1\n"), "did you mean [optimizer]?");
  EXPECT_EQ(labelOf("[model.heads]\nx = 1\n"), "");
  // What short names share with others by chance is no hint.
  EXPECT_EQ(labelOf("[train]\nbar = 1\n"), "");
  EXPECT_EQ(labelOf("[optimizer]\nxr = 1\n"), "");
  EXPECT_EQ(labelOf("[optimizer]\nesp = 1\n"), "did you mean optimizer.eps?");
  EXPECT_EQ(errors(small, {"model.activation=rleu"}).at(0).label, "did you mean \"relu\"?");
  EXPECT_EQ(errors(small, {"model.position=abc"}).at(0).label, "");
}

TEST_F(ConfigTest, NamesOfOtherProgramsLeadToKeysOfOurs) {
  // Each entry of the table is looked up as such, and names a key or a table that there is.
  std::vector<std::string> known = configKeys();
  for (const std::string &k : configKeys())
    if (size_t dot = k.find('.'); dot != std::string::npos)
      known.push_back(k.substr(0, dot));
  for (const OtherName &n : otherNames()) {
    EXPECT_NE(std::find(known.begin(), known.end(), n.ours), known.end()) << n.ours;
    EXPECT_EQ(std::find(known.begin(), known.end(), n.theirs), known.end()) << n.theirs;
    EXPECT_NE(nameInOtherPrograms(n.theirs, {n.ours}), nullptr) << n.theirs;
  }
}

TEST_F(ConfigTest, WarnsOfAWarmUpWithoutEnd) {
  EXPECT_TRUE(load(small, {"train.steps=10", "optimizer.warmup_steps=9"}).warnings.empty());
  EXPECT_EQ(load(small, {"train.steps=10", "optimizer.warmup_steps=10"}).warnings.size(), 1u);
}

TEST_F(ConfigTest, StepsOfASchedulePartOfTheRunOrTokens) {
  const std::vector<std::string> run = {"train.steps=250", "train.global_batch_tokens=256"};
  auto steps = [&](const std::string &warmup, const std::string &decay) {
    std::vector<std::string> all = run;
    all.insert(all.end(),
               {"optimizer.schedule=wsd", "optimizer.warmup_steps=" + warmup, "optimizer.decay_steps=" + decay});
    const Config c = load(small, all);
    return std::pair(c.optimizer.warmupSteps, c.optimizer.decaySteps);
  };
  using Steps = std::pair<int64_t, int64_t>;
  EXPECT_EQ(steps("7", "0"), Steps(7, 0));
  EXPECT_EQ(steps("\"2%\"", "\"40 %\""), Steps(5, 100));
  EXPECT_EQ(steps("\"0.5%\"", "\"20%\""), Steps(1, -1));
  EXPECT_EQ(steps("\"2560 tokens\"", "\"2.561K tokens\""), Steps(10, 11));  // the last step may read more
  for (const char *bad :
       {"101%", "-1%", "nan%", "%", "ten%", "tokens", "1.5 tokens", "512K", "half", "1e30 tokens", ""}) {
    std::vector<std::string> all = run;
    all.push_back(fmt::format("optimizer.warmup_steps=\"{}\"", bad));
    EXPECT_THROW(load(small, all), UserError) << bad;
  }
  EXPECT_TRUE(load(small, {"optimizer.schedule=wsd", "optimizer.decay_steps=5"}).warnings.empty());
  EXPECT_EQ(load(small, {"optimizer.schedule=cosine", "optimizer.decay_steps=5"}).warnings.size(), 1u);
}

TEST_F(ConfigTest, SaysWhatIsMissing) {
  EXPECT_EQ(places("[model]\nn_layer = 2\n"), (Places{"207 0:0", "207 0:0", "207 0:0", "207 0:0", "207 0:0"}));
  EXPECT_EQ(places(""), (Places{"207 0:0", "207 0:0", "207 0:0", "207 0:0", "207 0:0", "207 0:0"}));
  // The name of what is missing is not complained about twice when it is there but wrong.
  EXPECT_EQ(places("[model]\npreset = \"gpt2\"\nn_head = 0\n[data]\ntrain = 3\n"), (Places{"204 3:10", "203 5:9"}));
}

TEST_F(ConfigTest, HeadsHaveALimit) {
  EXPECT_EQ(places(small, {"model.n_head=1", "model.n_embd=1025"}), (Places{"204 1:14"}));
  EXPECT_EQ(places(small, {"model.n_head=1", "model.n_embd=1024"}), (Places{}));
}

TEST_F(ConfigTest, BatchMustBeWholePasses) {
  std::string text = std::string(small) + "[train]\nglobal_batch_tokens = 100\n";
  std::vector<Diagnostic> e = errors(text);
  ASSERT_EQ(e.size(), 1u);
  EXPECT_EQ(e[0].code, ErrorCode::ShapeMismatch);
  EXPECT_EQ(e[0].help.at(0), "global_batch_tokens = 96 or 112 works");
  e = errors(text, {"train.micro_batch=4"});
  EXPECT_EQ(e.at(0).help.at(0), "global_batch_tokens = 64 or 128 works");
  Config c = load(text, {"train.micro_batch=4", "train.global_batch_tokens=128"});
  EXPECT_EQ(c.train.accumulate, 2);
  EXPECT_EQ(load(small, {"train.micro_batch=3"}).train.globalBatchTokens, 48);
}

TEST_F(ConfigTest, ABatchMayHaveASuffix) {
  const std::string text = std::string(small) + "[train]\nmicro_batch = 4\nglobal_batch_tokens = ";
  EXPECT_EQ(load(text + "\"512K\"\n").train.globalBatchTokens, 512'000);
  EXPECT_EQ(load(text + "128\n", {"train.global_batch_tokens=1.6m"}).train.globalBatchTokens, 1'600'000);
  for (const char *wrong : {"512G", "1.5", "0", "K", "5B", ""}) {  // 5B is more than 2^32
    const std::vector<Diagnostic> e =
        errors(text + "128\n", {std::string("train.global_batch_tokens=\"") + wrong + '"'});
    ASSERT_EQ(e.size(), 1u) << wrong;
    EXPECT_EQ(e[0].code, ErrorCode::WrongType) << wrong;
    EXPECT_EQ(e[0].message, fmt::format("train.global_batch_tokens = \"{}\" is no number of tokens", wrong));
  }
}

TEST_F(ConfigTest, ExplicitValuesOfLaterWorkAreErrors) {
  for (const char *setting : {"optimizer.name=lamb", "parallel.compression=onebit"}) {
    std::vector<Diagnostic> e = errors(small, {setting});
    ASSERT_EQ(e.size(), 1u) << setting;
    EXPECT_EQ(e[0].code, ErrorCode::NotBuiltYet) << setting;
    EXPECT_FALSE(e[0].help.empty()) << setting;
  }
  for (const char *setting :
       {"parallel.data=auto",         "parallel.zero_stage=auto", "parallel.logical_shards=1",
        "compile.target=auto",        "compile.target=cuda",      "compile.target=cuda:sm_90a",
        "compile.remat=auto",         "compile.remat=full",       "compile.gpu_memory=80GiB",
        "compile.gpu_memory=H200",    "compile.gpu_memory=auto",  "log.mfu_peak=auto",
        "compile.remat=8GiB",         "compile.remat=2.5 MB",     "precision.compute=auto",
        "precision.compute=bf16",     "precision.compute=fp16",   "precision.optimizer_state=bf16",
        "precision.residual=compute", "train.micro_batch=auto",   "log.mfu_peak=measured",
        "log.mfu_peak=1e12",          "log.trace_steps=[]",       "log.trace_steps=[1, 2]",
        "model.init_from=scratch",    "model.init_from=hf:x",     "train.on_nonfinite=explain",
        "parallel.offload=optimizer"})
    EXPECT_TRUE(errors(small, {setting}).empty()) << setting;
}

TEST_F(ConfigTest, MemoryOfAGpuIsASizeOrAName) {
  const std::vector<Diagnostic> e = errors(small, {"compile.gpu_memory=H900"});
  ASSERT_EQ(e.size(), 1u);
  EXPECT_EQ(e[0].code, ErrorCode::UnknownValue);
  EXPECT_NE(e[0].help[0].find("H200 NVL"), std::string::npos) << e[0].help[0];
}

/// The settings, and a batch of 128 tokens in micro-batches of 2 sequences.
std::vector<std::string> withBatch(std::vector<std::string> settings) {
  settings.insert(settings.end(), {"train.global_batch_tokens=128", "train.micro_batch=2"});
  return settings;
}

TEST_F(ConfigTest, RanksShareTheBatch) {
  Config c = load(small, withBatch({}));
  EXPECT_EQ(c.parallel.data, 1);
  EXPECT_EQ(c.parallel.zeroStage, 0);
  EXPECT_EQ(c.train.accumulate, 4);
  c = load(small, withBatch({"parallel.tensor=2", "parallel.data=2"}));
  EXPECT_EQ(c.parallel.tensor, 2);
  EXPECT_EQ(c.train.accumulate, 2) << "ranks along tensor have the same sequences";
  c = load(small, withBatch({"parallel.data=2"}));
  EXPECT_EQ(c.parallel.zeroStage, 1) << "auto";
  EXPECT_EQ(c.parallel.logicalShards, 2) << "auto";
  EXPECT_EQ(c.train.accumulate, 2);
  c = load(small, withBatch({"parallel.data=2", "parallel.logical_shards=4", "parallel.zero_stage=0"}));
  EXPECT_EQ(c.parallel.shardsPerRank(), 2);
  EXPECT_EQ(c.parallel.zeroStage, 0);
  EXPECT_EQ(load(small, {"parallel.data=4", "train.global_batch_tokens=128"}).train.microBatch, 2) << "auto";
  EXPECT_EQ(load(small, withBatch({"parallel.data=1", "parallel.reduce_order=fast"})).parallel.reduceOrder,
            ReduceOrder::fast);
  c = load(small, withBatch({"parallel.data=2", "parallel.tensor=2", "compile.target=cuda:sm_90a"}));
  EXPECT_EQ(c.parallel.data * c.parallel.tensor, 4) << "on GPUs too";
  c = load(small, withBatch({"parallel.data=2", "parallel.sync_every=5"}));
  EXPECT_EQ(c.parallel.zeroStage, 0) << "auto, with outer steps";
  c = load(small, withBatch({"parallel.data=2", "parallel.sync_every=500", "eval.every=0", "checkpoint.every=1000"}));
  EXPECT_EQ(c.parallel.syncEvery, 500);
  c = load(small, withBatch({"parallel.data=2", "parallel.compression=powersgd"}));
  EXPECT_EQ(c.parallel.zeroStage, 0) << "auto, with compression";
  EXPECT_EQ(c.parallel.compressedRank(), 4);
  c = load(small, withBatch({"parallel.data=2", "parallel.gradient_rank=4", "parallel.compress_from=100"}));
  EXPECT_EQ(c.parallel.compressedRank(), 0) << "defaults say nothing";
  c = load(small, withBatch({"parallel.compression=powersgd", "parallel.gradient_rank=2", "parallel.compress_from=3"}));
  EXPECT_EQ(c.parallel.compressedRank(), 2);
  EXPECT_EQ(c.parallel.compressFrom, 3);
  c = load(small, withBatch({"parallel.outer_lr=0.7", "parallel.outer_momentum=0.9"}));
  EXPECT_EQ(c.parallel.syncEvery, 1) << "defaults say nothing";
  c = load(small, withBatch({"parallel.tensor=2", "parallel.logical_tensor=4"}));
  EXPECT_EQ(c.parallel.tensor, 2);
  EXPECT_EQ(c.parallel.logicalTensor, 4);
}

struct BadSharing {
  std::vector<std::string> settings;
  ErrorCode code;
  const char *help;
};

void expectError(const std::vector<Diagnostic> &e, const BadSharing &b) {
  ASSERT_EQ(e.size(), 1u) << b.settings[0];
  EXPECT_EQ(e[0].code, b.code) << b.settings[0];
  EXPECT_NE(e[0].help.at(0).find(b.help), std::string::npos) << e[0].help.at(0);
}

TEST_F(ConfigTest, RanksThatCannotShareTheBatchAreErrors) {
  for (const BadSharing &b :
       {BadSharing{{"parallel.data=3"}, ErrorCode::ShapeMismatch, "2 or 4 ranks work"},
        BadSharing{{"parallel.data=8"}, ErrorCode::ShapeMismatch, "global_batch_tokens = 256 works"},
        BadSharing{{"parallel.logical_shards=3"}, ErrorCode::ShapeMismatch, "1, 2 or 4 work"},
        BadSharing{{"parallel.data=4", "parallel.logical_shards=2"}, ErrorCode::ShapeMismatch, "4, 8 or 16"},
        BadSharing{{"parallel.reduce_order=fast", "parallel.logical_shards=2"},
                   ErrorCode::Contradiction,
                   "leave one of the two out"},
        BadSharing{{"parallel.tensor=8"}, ErrorCode::ShapeMismatch, "1, 2, 4 work"},
        BadSharing{{"parallel.tensor=4", "model.n_kv_head=2"}, ErrorCode::ShapeMismatch, "1, 2 work"},
        BadSharing{{"parallel.tensor=4", "model.ffn_dim=6"}, ErrorCode::ShapeMismatch, "1, 2 work"},
        BadSharing{{"parallel.logical_tensor=3"}, ErrorCode::ShapeMismatch, "2, 4 or 8 work"},
        BadSharing{{"parallel.tensor=4", "parallel.logical_tensor=2"}, ErrorCode::ShapeMismatch, "4, 8 or 16"},
        BadSharing{{"parallel.logical_tensor=8"}, ErrorCode::ShapeMismatch, "1, 2, 4 work"},
        BadSharing{{"parallel.logical_tensor=4", "model.n_kv_head=2"}, ErrorCode::ShapeMismatch, "1, 2 work"},
        BadSharing{{"parallel.logical_tensor=2", "optimizer.name=adafactor"}, ErrorCode::NotBuiltYet, "adamw or sgd"},
        BadSharing{{"parallel.logical_tensor=2", "precision.optimizer_state=bf16"}, ErrorCode::NotBuiltYet, "or fp32"},
        BadSharing{{"parallel.logical_tensor=2", "parallel.tensor=auto"},
                   ErrorCode::Contradiction,
                   "write tensor as a number"}})
    expectError(errors(small, withBatch(b.settings)), b);
}

TEST_F(ConfigTest, WhatOuterStepsAndCompressionCannotDoAreErrors) {
  for (const BadSharing &b :
       {BadSharing{
            {"parallel.sync_every=5", "parallel.zero_stage=1"}, ErrorCode::Contradiction, "zero_stage = 0 works"},
        BadSharing{{"parallel.sync_every=5", "parallel.tensor=2"}, ErrorCode::NotBuiltYet, "tensor = 1 works"},
        BadSharing{{"parallel.sync_every=5", "parallel.tensor=auto"}, ErrorCode::NotBuiltYet, "tensor = 1 works"},
        BadSharing{
            {"parallel.sync_every=5", "parallel.logical_tensor=2"}, ErrorCode::Contradiction, "logical_tensor = 1"},
        BadSharing{{"parallel.sync_every=5", "parallel.data=2", "parallel.logical_shards=4"},
                   ErrorCode::Contradiction,
                   "leave logical_shards out"},
        BadSharing{
            {"parallel.sync_every=5", "parallel.offload=optimizer"}, ErrorCode::NotBuiltYet, "offload = \"none\""},
        BadSharing{
            {"parallel.sync_every=5", "precision.compute=fp16"}, ErrorCode::NotBuiltYet, "compute = \"bf16\" works"},
        BadSharing{{"parallel.sync_every=5", "precision.compute=bf16", "precision.fp8=all"},
                   ErrorCode::NotBuiltYet,
                   "fp8 = \"off\" works"},
        BadSharing{{"parallel.compression=powersgd", "parallel.zero_stage=2"},
                   ErrorCode::Contradiction,
                   "zero_stage = 0 works"},
        BadSharing{{"parallel.compression=powersgd", "parallel.sync_every=5"},
                   ErrorCode::Contradiction,
                   "sync_every = 1 works"},
        BadSharing{{"parallel.compression=powersgd", "parallel.tensor=2"}, ErrorCode::NotBuiltYet, "tensor = 1 works"},
        BadSharing{
            {"parallel.compression=powersgd", "parallel.tensor=auto"}, ErrorCode::NotBuiltYet, "tensor = 1 works"},
        BadSharing{{"parallel.compression=powersgd", "parallel.logical_tensor=2"},
                   ErrorCode::NotBuiltYet,
                   "logical_tensor = 1"},
        BadSharing{{"parallel.compression=powersgd", "parallel.data=2", "parallel.logical_shards=4"},
                   ErrorCode::Contradiction,
                   "leave logical_shards out"},
        BadSharing{{"parallel.compression=powersgd", "parallel.offload=optimizer"},
                   ErrorCode::NotBuiltYet,
                   "offload = \"none\""},
        BadSharing{{"parallel.compression=powersgd", "train.on_nonfinite=skip"},
                   ErrorCode::NotBuiltYet,
                   "on_nonfinite = \"halt\" works"},
        BadSharing{{"parallel.compression=powersgd", "precision.compute=fp16"},
                   ErrorCode::NotBuiltYet,
                   "compute = \"bf16\" works"},
        BadSharing{{"parallel.compression=powersgd", "precision.compute=bf16", "precision.fp8=all"},
                   ErrorCode::NotBuiltYet,
                   "fp8 = \"off\" works"},
        BadSharing{{"parallel.sync_every=5", "checkpoint.every=12"}, ErrorCode::ShapeMismatch, "0, 10 or 15 works"},
        BadSharing{{"parallel.sync_every=5", "checkpoint.every=3"}, ErrorCode::ShapeMismatch, "0 or 5 works"},
        BadSharing{
            {"parallel.sync_every=300", "eval.every=0"}, ErrorCode::ShapeMismatch, "checkpoint.every = 0, 900 or 1200"},
        BadSharing{{"parallel.gradient_rank=2"}, ErrorCode::Contradiction, "or write compression"},
        BadSharing{{"parallel.compress_from=0", "parallel.compression=none"},
                   ErrorCode::Contradiction,
                   "or write compression"},
        BadSharing{{"parallel.outer_lr=0.5"}, ErrorCode::Contradiction, "or write sync_every"},
        BadSharing{
            {"parallel.outer_momentum=0.5", "parallel.sync_every=1"}, ErrorCode::Contradiction, "or write sync_every"}})
    expectError(errors(small, withBatch(b.settings)), b);
}

// A module says how far outer steps are apart; the periods of its run are set beside it, or are defaults.
TEST_F(ConfigTest, PeriodsOfAModulesRunFallOnOuterSteps) {
  auto read = [](const char *file, const std::vector<std::string> &more) {
    std::vector<std::string> settings = {"model.n_layer=1",    "model.n_head=1",      "model.n_embd=8",
                                         "model.vocab_size=9", "model.block_size=16", "train.micro_batch=1",
                                         "train.steps=1",      "data.train=t.bin"};
    settings.insert(settings.end(), more.begin(), more.end());
    return loadConfig(file, settings, [](const std::string &) { return int64_t(0); });
  };
  const std::vector<std::string> between = {"parallel.sync_every=5", "checkpoint.every=12"};
  EXPECT_EQ(read("", between).parallel.syncEvery, 5) << "a run's settings come from elsewhere";
  EXPECT_EQ(read("m.gir", {"parallel.sync_every=5", "checkpoint.every=15"}).run.checkpointEvery, 15);
  for (const auto &[settings, help] :
       {std::pair{between, "checkpoint.every = 0, 10 or 15 works"},
        {std::vector<std::string>{"parallel.sync_every=300"}, "checkpoint.every = 0, 900 or 1200 works"}}) {
    try {
      read("m.gir", settings);
      ADD_FAILURE() << help;
    } catch (const UserError &e) {
      ASSERT_EQ(e.diagnostics.size(), 1u);
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::ShapeMismatch);
      EXPECT_EQ(e.diagnostics[0].help.at(0), help);
    }
  }
}

TEST_F(ConfigTest, VocabularyComesFromTheTokenizer) {
  std::string text = R"([model]
n_layer = 1
n_head = 1
n_embd = 8
block_size = 8
[data]
train = "t.bin"
tokenizer = "tok.json"
)";
  const std::string file = write("model.toml", text);
  std::string asked;
  auto tokenizer = [&](const std::string &path) {
    asked = path;
    return int64_t(300);
  };
  EXPECT_EQ(loadConfig(file, {}, tokenizer).model.vocabSize, 300);
  EXPECT_EQ(asked, (dir / "tok.json").string());
  write("tok.json", "");
  EXPECT_EQ(loadConfig(file, {"model.vocab_size=400"}, tokenizer).model.vocabSize, 400);
  try {
    loadConfig(file, {"model.vocab_size=200"}, tokenizer);
    FAIL();
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::ShapeMismatch);
  }
  EXPECT_EQ(places(text), (Places{"301 8:13"}));
}

TEST_F(ConfigTest, ExamplesLoad) {
  for (auto &entry : std::filesystem::directory_iterator(GPTC_SOURCE_DIR "/examples"))
    if (entry.path().extension() == ".toml") {
      EXPECT_NO_THROW(loadConfig(entry.path().string(), {}, [](const std::string &) { return int64_t(4096); }))
          << entry.path();
    }
}

// Whatever stands in the file, the answer is a configuration or a UserError.
TEST(ConfigFuzz, DamagedFilesAreUserErrors) {
  const std::string whole = test::contentOf(GPTC_SOURCE_DIR "/examples/gpt2-124m.toml");
  std::mt19937 random(1);
  auto below = [&](size_t n) { return size_t(random() % n); };
  const std::string file = testing::TempDir() + "/gptc-fuzz-" + std::to_string(::getpid());
  const char *pieces[] = {"\"",
                          "'",
                          "[",
                          "]",
                          "[[",
                          "=",
                          ".",
                          "\n",
                          "#",
                          "-",
                          "1e999",
                          "nan",
                          "inf",
                          "0x",
                          "true",
                          "1979-05-27",
                          "\xff",
                          "{",
                          "}",
                          "99999999999999999999",
                          "-9223372036854775808",
                          "\\u",
                          "\"\"\"",
                          "extends",
                          "model",
                          ","};
  int accepted = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = whole;
    for (size_t edits = 1 + below(3); edits; --edits) {
      const size_t at = below(text.size());
      switch (below(3)) {
      case 0:
        text.erase(at, 1 + below(20));
        break;
      case 1:
        text.insert(at, pieces[below(std::size(pieces))]);
        break;
      default:
        text[at] = char(random());
        break;
      }
    }
    std::ofstream(file, std::ios::binary) << text;
    try {
      Config c = loadConfig(file, {}, [](const std::string &) { return int64_t(50257); });
      EXPECT_GT(c.model.nLayer, 0);
      EXPECT_EQ(c.model.nEmbd % c.model.nHead, 0);
      EXPECT_EQ(c.train.microBatch * c.model.blockSize * c.train.accumulate, c.train.globalBatchTokens);
      ++accepted;
    } catch (const UserError &e) {
      EXPECT_FALSE(e.diagnostics.empty());
      for (const Diagnostic &d : e.diagnostics)
        EXPECT_FALSE(d.str().empty());
    }
  }
  EXPECT_GT(accepted, 100);  // edits of comments
  std::filesystem::remove(file);
}

TEST(AutoMicroBatch, IsBounded) {
  ModelConfig m;
  m.nLayer = 12;
  m.nEmbd = 768;
  m.vocabSize = 50257;
  m.blockSize = 1024;
  EXPECT_EQ(autoMicroBatch(m, 512, false), 2);
  EXPECT_EQ(autoMicroBatch(m, 512, true), 8);
  EXPECT_EQ(autoMicroBatch(m, 511, false), 1);
  m.blockSize = 1 << 20;
  EXPECT_EQ(autoMicroBatch(m, 8, false), 1);
}

}  // namespace
