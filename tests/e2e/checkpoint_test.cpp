// Which plans a checkpoint fits: those of the same model, whatever their precision.
#include "tests/support/harness.h"

#include "frontends/model_builder.h"
#include "runtime/plan/plan.h"

#include <filesystem>
#include <set>

using namespace e2e;
using namespace gptc;

namespace {

/// Every key of [model] that is not merely a default for others, so that each can be changed alone.
const char *kEveryKey = R"(
[model]
n_layer = 2
n_head = 4
n_kv_head = 4
n_embd = 32
ffn_dim = 64
vocab_size = 64
block_size = 16
norm = "layernorm"
norm_eps = 1e-5
activation = "gelu_tanh"
position = "learned"
causal = true
bias = true
tie_embeddings = true
embedding_norm = false
dropout = 0.0
init_from = "scratch"
[data]
train = "train.bin"
)";

/// A value of a key, and settings without which the key has no meaning: beside the value only, or for both models that
/// are compared.
struct Change {
  std::string value;
  std::vector<std::string> beside = {}, both = {};
};

std::map<std::string, std::vector<Change>> changesOfModel() {
  const std::vector<std::string> rope = {"model.position=rope"}, rms = {"model.norm=rmsnorm", "model.bias=false"};
  const std::vector<std::string> bert = {
      "model.causal=false",  "model.activation=gelu",     "model.embedding_norm=true", "model.norm_position=post",
      "model.token_types=2", "model.head_transform=true", "model.head_bias=true"};
  const std::vector<std::string> modern = {"model.causal=false",
                                           "model.activation=geglu",
                                           "model.embedding_norm=true",
                                           "model.first_norm=false",
                                           "model.token_types=0",
                                           "model.position=rope",
                                           "model.rope_theta=160000",
                                           "model.head_transform=true",
                                           "model.head_bias=true",
                                           "model.bias=false",
                                           "model.labels=2"};
  auto labelled = [&](const char *labels) {
    std::vector<std::string> all = bert;
    all.push_back(std::string("model.labels=") + labels);
    return all;
  };
  auto scaled = [&](const std::string &how) {
    return std::vector<std::string>{"model.position=rope", "model.rope_factor=2", "model.rope_original_block_size=8",
                                    "model.rope_scaling=" + how};
  };
  return {{"n_layer", {{"3"}}},
          {"n_head", {{"8"}}},
          {"n_kv_head", {{"2"}}},
          {"n_embd", {{"64"}}},
          {"ffn_dim", {{"96"}}},
          {"vocab_size", {{"65"}}},
          {"block_size", {{"32"}}},
          {"norm", {{"rmsnorm"}}},
          {"norm_eps", {{"1e-6"}, {"0.1"}}},
          {"activation", {{"gelu"}, {"relu"}, {"relu2"}, {"silu"}, {"swiglu"}, {"geglu"}, {"geglu_tanh"}}},
          {"position", {{"rope"}, {"alibi"}, {"none"}}},
          {"causal", {{"false"}}},
          {"bias", {{"false"}}},
          {"tie_embeddings", {{"false"}}},
          {"embedding_norm", {{"true"}}},
          {"dropout", {{"0.5"}}},
          {"preset", {{"llama"}}},
          {"init_from", {{"hf:elsewhere"}}},
          {"head_dim", {{"16"}}},
          {"rope_theta", {{"5000", {}, rope}}},
          {"rotary_dim", {{"4", {}, rope}}},
          {"rope_scaling", {{"linear", {"model.rope_factor=2"}, rope}}},
          {"rope_factor", {{"4", {}, scaled("yarn")}}},
          {"rope_original_block_size", {{"4", {}, scaled("yarn")}}},
          {"rope_low_freq_factor", {{"2", {}, scaled("llama3")}}},
          {"rope_high_freq_factor", {{"8", {}, scaled("llama3")}}},
          {"rope_beta_fast", {{"16", {}, scaled("yarn")}}},
          {"rope_beta_slow", {{"2", {}, scaled("yarn")}}},
          {"rope_truncate", {{"false", {}, scaled("yarn")}}},
          {"rope_attention_factor", {{"2", {}, scaled("yarn")}}},
          {"layers_without_rope", {{"[1]", {}, rope}}},
          {"window", {{"4"}}},
          {"layers_without_window", {{"[1]", {}, {"model.window=4"}}}},
          {"window_rope_theta", {{"5000", {}, {"model.position=rope", "model.window=4"}}}},
          {"first_norm", {{"false"}}},
          {"attention_scale", {{"0.5"}}},
          {"attention_softcap", {{"30"}}},
          {"logit_softcap", {{"30"}}},
          {"embedding_scale", {{"8"}}},
          {"qkv_bias", {{"false"}}},
          {"attention_bias", {{"false"}}},
          {"mlp_bias", {{"false"}}},
          {"norm_bias", {{"false"}}},
          {"head_bias", {{"true"}}},
          {"qk_norm", {{"head", {}, rms}, {"whole", {}, rms}}},
          {"norm_position", {{"post"}, {"output"}, {"both"}}},
          {"norm_plus_one", {{"true", {}, rms}}},
          {"parallel_residual", {{"true"}}},
          {"shared_norm", {{"true", {}, {"model.parallel_residual=true"}}}},
          {"token_types", {{"2"}}},
          {"head_transform", {{"true"}}},
          {"labels", {{"2", {}, bert}, {"3", {}, bert}}},
          {"problem_type", {{"multi_label_classification", {}, labelled("2")}, {"regression", {}, labelled("1")}}},
          {"classifier_pooling", {{"mean", {}, modern}}}};
}

TEST(ModelIdentity, HoldsEveryKeyOfModelThatChangesWhatIsComputed) {
  const std::map<std::string, std::vector<Change>> changes = changesOfModel();
  // Dropout is part of training only; the other two only say what is not written.
  const std::set<std::string> computeTheSame = {"dropout", "preset", "init_from"};

  Workplace w;
  const std::string file = w.path("every.toml");
  writeFile(file, kEveryKey);
  auto identity = [&](const std::vector<std::string> &settings) {
    return modelIdentity(*buildModel(loadConfig(file, settings, {})));
  };
  const ModelIdentity base = identity({});
  for (const std::string &full : configKeys()) {
    if (full.rfind("model.", 0) != 0)
      continue;
    const std::string key = full.substr(6);
    ASSERT_TRUE(changes.count(key)) << key << ": say here whether it changes what is computed";
    std::vector<ModelIdentity> seen;
    for (const Change &c : changes.at(key)) {
      std::vector<std::string> settings = c.both;
      if (seen.empty())
        seen.push_back(identity(settings));
      settings.insert(settings.end(), c.beside.begin(), c.beside.end());
      settings.push_back(full + "=" + c.value);
      const ModelIdentity other = identity(settings);
      if (computeTheSame.count(key)) {
        EXPECT_EQ(other, base) << key;
        continue;
      }
      ASSERT_TRUE(other.keys.count(key)) << key << " changes what is computed";
      for (const ModelIdentity &s : seen)
        EXPECT_NE(other.keys, s.keys) << key << " = " << c.value;
      seen.push_back(other);
    }
  }
  // Only a table of positions has a length.
  EXPECT_EQ(identity({"model.position=rope"}), identity({"model.position=rope", "model.block_size=32"}));
  for (const char *training : {"precision.compute=bf16", "precision.optimizer_state=bf16", "train.micro_batch=2",
                               "train.global_batch_tokens=1024", "optimizer.lr=1", "compile.remat=full"})
    EXPECT_EQ(identity({training}), base) << training;
}

TEST(Checkpoints, OfAnotherModelAreRefusedByTheKeysThatDiffer) {
  Workplace w;
  const std::string plan = w.compile("plan", {"model.position=rope"});
  ASSERT_EQ(w.gptrun({plan, "--steps", "3"}).code, 0);
  const std::string was = w.finalState(w.path("out"));
  const struct {
    const char *setting, *difference, *remedy;
  } cases[] = {
      {"model.activation=relu", "activation is \"gelu_tanh\" there and \"relu\" in the plan",
       "model.activation = \"gelu_tanh\""},
      {"model.n_head=4", "n_head is 2 there and 4 in the plan", "model.n_head = 2"},
      {"model.position=alibi", "position is \"rope\" there and \"alibi\" in the plan", "model.position = \"rope\""},
      {"model.position=none", "position is \"rope\" there and \"none\" in the plan", "model.position = \"rope\""}};
  for (auto &c : cases) {
    const std::string other = w.compile("other", {"model.position=rope", c.setting});
    for (const std::vector<std::string> &command : {std::vector<std::string>{other}, {"eval", other}}) {
      Result r = w.gptrun(command);
      EXPECT_EQ(r.code, 5) << c.setting << r.output;
      EXPECT_NE(r.output.find(c.difference), std::string::npos) << r.output;
      EXPECT_NE(r.output.find(c.remedy), std::string::npos) << r.output;
    }
    EXPECT_TRUE(w.finalState(w.path("out")) == was);
  }
  // Both remedies work.
  EXPECT_EQ(w.gptrun({w.path("other"), "--steps", "1", "--out-dir", w.path("elsewhere")}).code, 0);
  Result r =
      w.gptrun({w.compile("back", {"model.position=rope", "model.activation=\"gelu_tanh\""}), "--resume", "must"});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(r.output.find("warning"), std::string::npos) << r.output;
}

TEST(Checkpoints, ResumeInEveryPrecision) {
  Workplace w;
  const std::vector<std::pair<std::string, std::vector<std::string>>> precisions = {
      {"fp32", {}},
      {"fp16", {"precision.compute=fp16"}},
      {"bf16_moments", {"precision.compute=bf16", "precision.optimizer_state=bf16"}}};
  for (auto &[name, settings] : precisions) {
    w.compile("plan-" + name, settings);
    ASSERT_EQ(w.gptrun({w.path("plan-" + name), "--steps", "6", "--out-dir", w.path("out-" + name)}).code, 0);
  }
  for (auto &[from, unused] : precisions)
    for (auto &[to, unused2] : precisions) {
      if (from == to)
        continue;
      const std::string out = w.path(from + "-" + to), plan = w.path("plan-" + to);
      std::filesystem::copy(w.path("out-" + from), out, std::filesystem::copy_options::recursive);
      Result eval = w.gptrun({"eval", plan, "--out-dir", out});
      EXPECT_EQ(eval.code, 0) << eval.output;
      Result r = w.gptrun({plan, "--out-dir", out, "--resume", "must"});
      EXPECT_EQ(r.code, 0) << from << " to " << to << r.output;
      EXPECT_EQ(r.output.find("damaged"), std::string::npos) << r.output;
      auto says = [&](const char *text) { return r.output.find(text) != std::string::npos; };
      EXPECT_EQ(says("bf16 in the plan: rounded to nearest"), to == "bf16_moments") << r.output;
      EXPECT_EQ(says("f32 in the plan: widened"), from == "bf16_moments") << r.output;
      EXPECT_EQ(says("not in the checkpoint: loss_scale, good_steps; starting at 65536, 0"), to == "fp16") << r.output;
      EXPECT_EQ(readFile(out + "/log.jsonl").find("\"loss_scale\": 65536") != std::string::npos,
                from == "fp16" || to == "fp16");
      EXPECT_EQ(w.checkpoints(out).back(), "step-00000012");
    }
}

}  // namespace
