#include "frontends/parameter_groups.h"

#include "frontends/model_builder.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

namespace gptc {
namespace {

TEST(ParameterGroups, Patterns) {
  EXPECT_TRUE(matchesPattern("*", ""));
  EXPECT_TRUE(matchesPattern("*.bias", "h.0.ln_1.bias"));
  EXPECT_FALSE(matchesPattern("*.bias", "h.0.ln_1.bias2"));
  EXPECT_TRUE(matchesPattern("h.*.attn.*", "h.11.attn.c_attn.weight"));
  EXPECT_FALSE(matchesPattern("h.*.attn.*", "h.11.mlp.c_fc.weight"));
  EXPECT_TRUE(matchesPattern("h.?.ln_1.weight", "h.3.ln_1.weight"));
  EXPECT_FALSE(matchesPattern("h.?.ln_1.weight", "h.13.ln_1.weight"));
  EXPECT_TRUE(matchesPattern("*a*a*b", "aaab"));
  EXPECT_FALSE(matchesPattern("wte", "wte.weight"));
  EXPECT_FALSE(matchesPattern("", "x"));
}

Config config(std::vector<std::string> more) {
  std::vector<std::string> settings = {"model.preset=gpt2",
                                       "model.n_layer=2",
                                       "model.n_head=2",
                                       "model.n_embd=32",
                                       "model.vocab_size=61",
                                       "model.block_size=16",
                                       "train.global_batch_tokens=64"};
  settings.insert(settings.end(), more.begin(), more.end());
  return loadConfig("", settings, [](const std::string &) { return int64_t(0); });
}

const AttrMap &of(const Module &m, const char *name) { return m.state(name)->attrs; }

TEST(ParameterGroups, TheLastThatMatchesWins) {
  const Config c = config({"optimizer.group=[{match='h.*', lr_scale=0.5, weight_decay=0.25}, "
                           "{match=['*.bias', 'wpe.*'], betas=[0.5, 0.75]}, {match='h.1.*', frozen=true}]"});
  auto m = buildModel(c);
  EXPECT_EQ(of(*m, "h.0.ln_1.weight").getFloat("lr_scale"), 0.5);
  EXPECT_EQ(of(*m, "h.0.ln_1.weight").getFloat("weight_decay"), 0.25);
  EXPECT_FALSE(of(*m, "h.0.ln_1.bias").has("lr_scale"));
  EXPECT_EQ(of(*m, "h.0.ln_1.bias").getFloat("beta1"), 0.5);
  EXPECT_EQ(of(*m, "wpe.weight").getFloat("beta2"), 0.75);
  EXPECT_TRUE(of(*m, "h.1.ln_1.bias").getBool("frozen"));
  EXPECT_FALSE(of(*m, "wte.weight").has("group"));
  const std::vector<std::string> lines = describeGroups(c, *m);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "h.*: lr x 0.5, weight_decay 0.25; 6 tensors, 12352 parameters");
  EXPECT_EQ(lines[1], "*.bias wpe.*: betas 0.5, 0.75; 8 tensors, 896 parameters");
  EXPECT_EQ(lines[2].substr(0, 15), "h.1.*: frozen; ");
  EXPECT_EQ(lines[3], "all others; 2 tensors, 1984 parameters");
  // A plan for other ranks is made from these.
  const Config again = loadConfig("", modelSettings(c), [](const std::string &) { return int64_t(0); });
  EXPECT_EQ(print(*buildModel(again)), print(*m));
}

TEST(ParameterGroups, LayerDecayFallsFromTheHeadToTheEmbeddings) {
  const Config c = config({"optimizer.layer_decay=0.5", "optimizer.group=[{match='h.1.*.bias', lr_scale=3.0}, "
                                                        "{match='h.0.ln_2.*', frozen=true}]"});
  auto m = buildModel(c);
  EXPECT_FALSE(of(*m, "ln_f.weight").has("lr_scale"));
  EXPECT_EQ(of(*m, "h.1.attn.c_attn.weight").getFloat("lr_scale"), 0.5);
  EXPECT_EQ(of(*m, "h.1.attn.c_attn.bias").getFloat("lr_scale"), 1.5);
  EXPECT_EQ(of(*m, "h.0.mlp.c_fc.weight").getFloat("lr_scale"), 0.25);
  EXPECT_FALSE(of(*m, "h.0.ln_2.weight").has("lr_scale"));
  EXPECT_EQ(of(*m, "wte.weight").getFloat("lr_scale"), 0.125);
  EXPECT_EQ(of(*m, "wpe.weight").getFloat("lr_scale"), 0.125);
  EXPECT_EQ(describeGroups(c, *m).front(),
            "layer_decay 0.5: lr x 0.125 of embeddings, 0.25 of layer 0, 0.5 of layer 1");
  const Config again = loadConfig("", modelSettings(c), [](const std::string &) { return int64_t(0); });
  EXPECT_EQ(print(*buildModel(again)), print(*m));
  // A factor alone needs no group.
  const Config alone = config({"optimizer.layer_decay=0.5"});
  EXPECT_EQ(describeGroups(alone, *buildModel(alone)).size(), 1u);
}

TEST(ParameterGroups, LayerDecayOfWhatIsBesideTheLayers) {
  auto m = buildModel(config({"model.embedding_norm=true", "model.tie_embeddings=false", "optimizer.layer_decay=0.5"}));
  EXPECT_EQ(of(*m, "word_embeddings_layernorm.weight").getFloat("lr_scale"), 0.125);
  EXPECT_FALSE(of(*m, "lm_head.weight").has("lr_scale"));
}

std::vector<std::string> problemsOf(const char *groups) {
  std::vector<std::string> all;
  try {
    buildModel(config({std::string("optimizer.group=") + groups}));
  } catch (const UserError &e) {
    for (const Diagnostic &d : e.diagnostics)
      all.push_back(d.message + (d.label.empty() ? "" : "; " + d.label));
  }
  return all;
}

TEST(ParameterGroups, WhatMatchesNothingIsAnError) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(problemsOf("[{match='*.bais'}, {match=['wte.weight', 'lm_head.weight']}]"),
            (Texts{"no parameter is called \"*.bais\"; did you mean \"*.bias\"?",
                   problemsOf("[{match='lm_head.weight'}]")[0]}));
  EXPECT_EQ(problemsOf("[{match='wte.weight', frozen=true}, {match='w*'}]"),
            (Texts{"group 1 of optimizer.group has no parameters; all that it matches belongs to later groups"}));
  EXPECT_EQ(problemsOf("[{match='*', frozen=true}]"), (Texts{"every parameter is frozen; nothing is left to train"}));
  EXPECT_EQ(problemsOf("[{match='*', frozen=true}, {match='ln_f.bias'}]"), Texts{});
}

TEST(ParameterGroups, KeysAreChecked) {
  EXPECT_EQ(problemsOf("[{lr_scale=1}]").size(), 1u);
  EXPECT_EQ(problemsOf("[{match=3}]").size(), 1u);
  EXPECT_EQ(problemsOf("[{match=['a', 3]}]").size(), 1u);
  EXPECT_EQ(problemsOf("[{match='*', lr_scale=0}]").size(), 1u);
  EXPECT_EQ(problemsOf("[{match='*', lr_scal=2}]"),
            (std::vector<std::string>{"unknown key optimizer.group.lr_scal; did you mean optimizer.group.lr_scale?"}));
  EXPECT_EQ(problemsOf("3").size(), 1u);
}

TEST(EightBits, MarksMatricesOfLayers) {
  const Config c = config({"precision.weights=q4_k", "precision.eight_bits=['h.0.mlp.*', 'h.1.attn.c_attn.weight']"});
  std::vector<std::string> marked;
  for (const BuildOptions &how : {BuildOptions{}, BuildOptions{.slots = 2}, BuildOptions{.embed = true}}) {
    const auto m = buildModel(c, how);
    marked.clear();
    for (const auto &s : m->states)
      if (s->attrs.getBool("eight_bits"))
        marked.push_back(s->name);
    EXPECT_EQ(marked,
              (std::vector<std::string>{"h.0.mlp.c_fc.weight", "h.0.mlp.c_proj.weight", "h.1.attn.c_attn.weight"}));
  }
  // A plan for other ranks, and for sampling, is made from these.
  const Config again = loadConfig("", modelSettings(c), [](const std::string &) { return int64_t(0); });
  EXPECT_EQ(print(*buildModel(again)), print(*buildModel(c)));
  EXPECT_TRUE(config({"precision.eight_bits=[]"}).precision.eightBits.empty());
  EXPECT_EQ(config({"precision.weights=q4_0", "precision.eight_bits='h.*'"}).precision.eightBits.size(), 1u);
}

TEST(FewBits, AreForAllTargets) {
  for (const char *target : {"cpu", "cuda:sm_90a"})
    for (const char *weights : {"q8_0", "q4_0", "q4_k"})
      EXPECT_NO_THROW(config({fmt::format("precision.weights={}", weights), fmt::format("compile.target={}", target)}))
          << target << " " << weights;
}

TEST(EightBits, AreForWeightsInFour) {
  for (const char *weights : {"compute", "q8_0"})
    try {
      config({fmt::format("precision.weights={}", weights), "precision.eight_bits='h.*'"});
      ADD_FAILURE() << weights;
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::Contradiction) << e.what();
    }
}

TEST(EightBits, WhatMatchesNothingIsAnError) {
  auto problems = [](const std::string &patterns) {
    std::vector<std::string> all;
    try {
      buildModel(config({"precision.weights=q4_k", "precision.eight_bits=" + patterns}));
    } catch (const UserError &e) {
      for (const Diagnostic &d : e.diagnostics)
        all.push_back(fmt::format("{} {}", int(d.code), d.message));
    }
    return all;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(problems("['h.*.mlp.c_prj.weight', 'h.*', 'wte.weight', 'h.0.ln_1.weight']"),
            (Texts{"205 no matrix of a layer is called \"h.*.mlp.c_prj.weight\"",
                   "205 no matrix of a layer is called \"wte.weight\"",
                   "205 no matrix of a layer is called \"h.0.ln_1.weight\""}));
  for (const char *wrong : {"3", "true", "['h.*', 3]", "[[]]"})
    EXPECT_EQ(problems(wrong).size(), 1u) << wrong;
}

TEST(CacheFormat, CachesHaveNumbersAndScales) {
  const Config c = config({"precision.cache=q8_0", "model.n_embd=128", "model.head_dim=96"});
  auto typeOf = [](const Module &m, const char *name) {
    const State *s = m.state(name);
    return s ? s->type.str() : "none";
  };
  for (const int64_t slots : {0, 3}) {
    const auto m = buildModel(c, {.slots = slots});
    EXPECT_TRUE(verify(*m).empty()) << verify(*m).front();
    const std::string before = slots ? "3,2,16," : "2,16,";
    EXPECT_EQ(typeOf(*m, "h.1.attn.k_cache"), "u32[" + before + "24]");
    EXPECT_EQ(typeOf(*m, "h.0.attn.v_scales"), "f16[" + before + "3]");
    int written = 0, caches = 0;
    for (const auto &f : m->functions)
      for (const Op &op : f->body) {
        caches += op.is(OpKind::attention_cached);
        written += op.is(OpKind::write) && llvm::StringRef(op.state).contains(".attn.");
      }
    EXPECT_GT(caches, 0);
    EXPECT_EQ(written, 4 * caches);
  }
  EXPECT_EQ(typeOf(*buildModel(config({"precision.cache=auto"})), "h.1.attn.k_cache"), "f32[2,16,16]");
  EXPECT_EQ(print(*buildModel(config({"precision.cache=auto"}))), print(*buildModel(config({}))));
  // A plan for other ranks, and for sampling, is made from these.
  const Config again = loadConfig("", modelSettings(c), [](const std::string &) { return int64_t(0); });
  EXPECT_EQ(print(*buildModel(again)), print(*buildModel(c)));
}

TEST(CacheFormat, WhatHasNoneIsAnError) {
  auto problem = [](std::vector<std::string> more) {
    more.push_back("precision.cache=q8_0");
    try {
      config(more);
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics.size(), 1u) << e.what();
      EXPECT_NE(std::string(e.what()).find("precision.cache"), std::string::npos) << e.what();
      EXPECT_FALSE(e.diagnostics[0].help.empty());
      return std::optional(e.diagnostics[0].code);
    }
    return std::optional<ErrorCode>();
  };
  EXPECT_EQ(problem({}), ErrorCode::ShapeMismatch) << "heads of 16";
  EXPECT_EQ(problem({"model.head_dim=48"}), ErrorCode::ShapeMismatch);
  EXPECT_FALSE(problem({"model.head_dim=32"}));
  EXPECT_EQ(problem({"model.head_dim=32", "compile.target=cuda:sm_90a"}), ErrorCode::NotBuiltYet);
  EXPECT_EQ(problem({"model.head_dim=32", "model.causal=false"}), ErrorCode::Contradiction);
}

TEST(OptimizerKeys, DefaultsFollowTheName) {
  EXPECT_EQ(config({}).optimizer.lr, 6e-4);
  const OptimizerConfig sgd = config({"optimizer.name=sgd"}).optimizer;
  EXPECT_EQ(sgd.lr, 0.1);
  EXPECT_EQ(sgd.weightDecay, 0);
  EXPECT_EQ(sgd.momentum, 0.9);
  const OptimizerConfig adafactor = config({"optimizer.name=adafactor", "optimizer.weight_decay=0.1"}).optimizer;
  EXPECT_EQ(adafactor.lr, 0.01);
  EXPECT_EQ(adafactor.eps, 0x1p-23);
  EXPECT_EQ(adafactor.weightDecay, 0.1);
  EXPECT_EQ(adafactor.firstMoment, 0);
}

}  // namespace
}  // namespace gptc
