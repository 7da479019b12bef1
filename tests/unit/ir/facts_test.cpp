// Facts of modules and states: what is read, written and rejected.
#include "ir/facts.h"
#include "ir/opdef.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <set>

namespace gptc::test {
namespace {

std::vector<std::string> problemsOf(const std::string &attributes) {
  return verify(*parseModule("module {" + attributes + "} {\n}\n", "t"));
}

TEST(Facts, AbsentOnesAreTheirDefault) {
  const Module m;
  EXPECT_EQ(factsOf<ModelFacts>(m), ModelFacts());
  EXPECT_EQ(fact<&BatchFacts::accumulate>(m), 1);
  EXPECT_EQ(fact<&OptimizerFacts::beta2>(m), 0.999);
  EXPECT_EQ(fact<&MemoryFacts::arenaBytes>(m), 0);
  EXPECT_EQ(fact<&CompileFacts::packWeights>(m), std::nullopt);
  EXPECT_FALSE(hasFact<&BatchFacts::accumulate>(m));
  EXPECT_EQ(kindOf(State()), std::nullopt);
}

TEST(Facts, WhatIsWrittenIsRead) {
  Module m;
  ModelFacts model;
  model.name = "small";
  model.nLayer = 3;
  model.norm = Norm::rmsnorm;
  model.activation = Activation::geglu;
  model.position = Position::none;
  model.causal = false;
  model.normEps = 0.25;
  model.ropeScaling = RopeScaling::yarn;
  model.layersWithoutRope = {1, 2};
  model.qkvBias = false;
  writeFacts(m, model);
  EXPECT_EQ(factsOf<ModelFacts>(m), model);
  writeFacts(m, ParallelFacts{.data = 4, .tensor = 2, .zeroStage = 1, .reduceOrder = ReduceOrder::fast});
  writeFacts(m, CompileFacts{.remat = "8GiB", .packWeights = false, .offload = Offload::optimizer});
  EXPECT_EQ(
      print(m),
      "module {activation=\"geglu\", bias=true, block_size=0, causal=false, embedding_norm=false, "
      "ffn_dim=0, layers_without_rope=[1, 2], mesh_data=4, mesh_tensor=2, n_embd=0, n_head=0, n_kv_head=0, n_layer=3, "
      "name=\"small\", norm=\"rmsnorm\", norm_eps=0.25, offload=\"optimizer\", pack_weights=false, "
      "position=\"none\", qkv_bias=false, reduce_order=\"fast\", remat=\"8GiB\", rope_scaling=\"yarn\", shards=1, "
      "tie_embeddings=true, "
      "vocab_size=0, zero_stage=1} {\n}\n");
}

// Some are written only if they say something: an old text stays as it was.
TEST(Facts, DefaultsOfSomeAreNotWritten) {
  Module m;
  m.attrs.set("norm_eps", 0.25);
  m.attrs.set("decision.remat.all", std::string("kept"));
  writeFacts(m, ModelFacts());
  writeFacts(m, ParallelFacts());
  writeFacts(m, CompileFacts());
  writeFacts(m, MemoryFacts());
  for (const char *name : {"norm_eps", "mesh_tensor", "remat", "pack_weights", "offload", "arena_bytes"})
    EXPECT_FALSE(m.attrs.has(name)) << name;
  for (const char *name : {"mesh_data", "norm", "decision.remat.all"})
    EXPECT_TRUE(m.attrs.has(name)) << name;
}

TEST(Facts, AnOptionalOneIsRemovedByNothing) {
  Module m;
  setFact<&CompileFacts::packWeights>(m, false);
  EXPECT_EQ(fact<&CompileFacts::packWeights>(m), false);
  setFact<&CompileFacts::packWeights>(m, std::nullopt);
  EXPECT_FALSE(hasFact<&CompileFacts::packWeights>(m));
}

// Each enumerator has a word, and each word one enumerator.
TEST(Facts, WordsAndEnumeratorsMatch) {
  EXPECT_EQ(nameOf(Norm::rmsnorm), "rmsnorm");
  EXPECT_EQ(nameOf(Activation::geglu), "geglu");
  EXPECT_EQ(nameOf(Position::none), "none");
  EXPECT_EQ(nameOf(OptimizerKind::adafactor), "adafactor");
  EXPECT_EQ(nameOf(LrSchedule::constant), "constant");
  EXPECT_EQ(nameOf(Compute::tf32), "tf32");
  EXPECT_EQ(nameOf(MomentType::bf16), "bf16");
  EXPECT_EQ(nameOf(ReduceOrder::fast), "fast");
  EXPECT_EQ(nameOf(Offload::optimizer), "optimizer");
  EXPECT_EQ(nameOf(StateKind::packed), "packed");
  EXPECT_EQ(nameOf(Initial::constant), "const");
  for (const std::string &word : allWords<StateKind>())
    EXPECT_EQ(nameOf(*parseWord<StateKind>(word)), word);
  EXPECT_EQ(parseWord<Norm>("layer_norm"), std::nullopt);
}

TEST(Facts, TheTableNamesEachOnceAndSaysWhatItMeans) {
  for (llvm::ArrayRef<FactSpec> facts : {moduleFacts(), functionFacts(), stateFacts()}) {
    std::set<std::string> names;
    for (const FactSpec &f : facts) {
      EXPECT_TRUE(names.insert(f.name).second) << f.name;
      EXPECT_GT(std::string(f.meaning).size() * std::string(f.writer).size(), 0u) << f.name;
      EXPECT_EQ(f.limits.has_value() && f.kind != FactSpec::Int && f.kind != FactSpec::Float, false) << f.name;
    }
  }
  EXPECT_EQ(findFact(moduleFacts(), "shards")->group, std::string("ParallelFacts"));
  EXPECT_EQ(findFact(stateFacts(), "shards"), nullptr);
}

TEST(Facts, AnUnknownWordIsAnError) {
  Module m;
  m.attrs.set("compute", std::string("fp8"));
  try {
    fact<&PrecisionFacts::compute>(m);
    FAIL();
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::GirInvalid);
    EXPECT_EQ(e.diagnostics[0].message, "attribute compute = \"fp8\" is not known");
    EXPECT_EQ(e.diagnostics[0].help.at(0), "\"fp32\", \"bf16\", \"fp16\" and \"tf32\" work");
  }
  State *s = m.addState("s", Type::scalar(DType::f32));
  EXPECT_FALSE(livesOnHost(*s));
  s->attrs.set("memory", std::string("host"));
  EXPECT_TRUE(livesOnHost(*s));
  s->attrs.set("memory", std::string("disk"));
  EXPECT_THROW(livesOnHost(*s), UserError);
}

struct Bad {
  const char *attributes, *problem;
};
class FactsReject : public testing::TestWithParam<Bad> {};

TEST_P(FactsReject, WithOneMessage) {
  EXPECT_EQ(problemsOf(GetParam().attributes), std::vector<std::string>{GetParam().problem});
}

INSTANTIATE_TEST_SUITE_P(
    All, FactsReject,
    testing::Values(Bad{"shrads=2", "a module has no attribute 'shrads'; did you mean 'shards'?"},
                    Bad{"micro_bach=2", "a module has no attribute 'micro_bach'; did you mean 'micro_batch'?"},
                    Bad{"colour=\"red\"", "a module has no attribute 'colour'"},
                    Bad{"\"a\\nb\"=1", "a module has no attribute 'a\\nb'"},
                    Bad{"decisions=\"x\"", "a module has no attribute 'decisions'"},
                    Bad{"decision.fuse.all=1", "module attribute decision.fuse.all must be a string"},
                    Bad{"shards=\"2\"", "module attribute shards must be an integer"},
                    Bad{"shards=2.0", "module attribute shards must be an integer"},
                    Bad{"lr=\"x\"", "module attribute lr must be a number"},
                    Bad{"causal=1", "module attribute causal must be true or false"},
                    Bad{"norm=1", "module attribute norm must be a string"},
                    Bad{"norm=\"batchnorm\"",
                        "module attribute norm = \"batchnorm\" is not known; \"layernorm\" and \"rmsnorm\" are"},
                    Bad{"optimizer=\"adam\"",
                        "module attribute optimizer = \"adam\" is not known; \"adamw\", \"sgd\" and \"adafactor\" are"},
                    Bad{"zero_stage=4", "module attribute zero_stage = 4 is out of range; 0 to 3 works"},
                    Bad{"mesh_data=0", "module attribute mesh_data = 0 is out of range; 1 to 1048576 works"},
                    Bad{"arena_bytes=-1", "module attribute arena_bytes = -1 is out of range; 0 or more works"},
                    Bad{"norm_eps=0.0", "module attribute norm_eps = 0.0 is out of range; above 0, at most 1 works"},
                    Bad{"lr=nan", "module attribute lr = nan is out of range; 0 or more works"},
                    Bad{"weight_decay=inf", "module attribute weight_decay = inf is out of range; 0 or more works"}));

TEST(Facts, GoodOnesPass) {
  EXPECT_TRUE(problemsOf("shards=2, lr=1, norm=\"rmsnorm\", zero_stage=3, arena_bytes=0, decision.x.y=\"\"").empty());
}

TEST(Facts, FunctionsAndStatesHaveNoOthers) {
  const auto m = parseModule("state @s : f32[] {kind=\"parm\"}\nstate @t : f32[] {grop=1}\n"
                             "func @f() {arg_at=[64]} {\n return\n}\nfunc @g() {grads=-1} {\n return\n}",
                             "t");
  EXPECT_EQ(verify(*m), (std::vector<std::string>{
                            "@s: state attribute 'kind' = \"parm\" is not known; \"param\", \"moment\", \"grad\", "
                            "\"counter\", \"cache\", \"low\", \"whole\", \"packed\", \"quantized\" and \"anchor\" are",
                            "@t: a state has no attribute 'grop'; did you mean 'group'?",
                            "@f: a function has no attribute 'arg_at'; did you mean 'args_at'?",
                            "@g: function attribute 'grads' = -1 is out of range; 0 or more works"}));
}

// The op `fused` lists its own attributes; both lists are the same.
TEST(Facts, GroupsHaveWhatTheirOpSays) {
  std::set<std::string> ofOp, ofFacts;
  for (const AttrSpec &a : opDef(OpKind::fused).attrs)
    ofOp.insert(a.name);
#define GPTC_FACTS(S, carrier)
#define GPTC_FACT(S, type, member, ...)                                                                                \
  if constexpr (std::is_same_v<S::Carrier, Op>) {                                                                      \
    EXPECT_TRUE(ofFacts.insert(FactAt<&S::member>::name).second) << #member;                                           \
  }
#define GPTC_FACT_UNLESS(S, type, member, ...) GPTC_FACT(S, type, member, __VA_ARGS__)
#define GPTC_FACTS_END(S, carrier)
#include "ir/facts.def"
  EXPECT_EQ(ofOp, ofFacts);
}

}  // namespace
}  // namespace gptc::test
