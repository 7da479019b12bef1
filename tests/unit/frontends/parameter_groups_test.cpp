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
