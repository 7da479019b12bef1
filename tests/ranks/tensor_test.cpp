// Tensor parallelism: what ranks compute together in the interpreter is what one rank computes with the whole module,
// in float64; and their plans compute the same within the error of one rank's.
#include "tests/ranks/parts.h"
#include "tests/support/rank_threads.h"

#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/choose_token.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "passes/pass.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

namespace gptc {
namespace {

struct Form {
  const char *name;
  std::vector<std::string> settings;
  int64_t block = 8;
};

const std::vector<Form> forms = {
    {"gpt2", {"model.dropout=0.2"}},
    {"llama",
     {"model.norm=rmsnorm", "model.activation=swiglu", "model.position=rope", "model.bias=false", "model.n_kv_head=2",
      "model.ffn_dim=24"}},
    {"llama_dropout",
     {"model.norm=rmsnorm", "model.activation=swiglu", "model.position=rope", "model.bias=false", "model.ffn_dim=24",
      "model.dropout=0.3"}},
    {"gated_bias", {"model.activation=geglu", "model.ffn_dim=20", "model.tie_embeddings=false"}},
    {"encoder", {"model.causal=false", "model.embedding_norm=true", "model.dropout=0.1"}},
    // Six tokens do not divide by four ranks: between blocks all ranks compute the same.
    {"whole_tokens", {"model.dropout=0.2", "model.embedding_norm=true"}, 6},
    {"alibi", {"model.position=alibi", "model.dropout=0.2"}},
    // Slopes of two kinds: of the eight first heads and of the others.
    {"alibi_twelve_heads", {"model.position=alibi", "model.n_head=12", "model.n_embd=24", "model.causal=false"}},
    {"adafactor", {"optimizer.name=adafactor", "optimizer.first_moment=0.5"}},
    {"adafactor_gated",
     {"optimizer.name=adafactor", "model.activation=swiglu", "model.ffn_dim=24", "model.n_kv_head=2",
      "optimizer.relative_step=false", "model.position=rope"}},
    {"side_by_side",
     {"model.parallel_residual=true", "model.position=rope", "model.head_dim=6", "model.n_embd=10", "model.ffn_dim=12",
      "model.layers_without_rope=[1]", "model.dropout=0.1"}},
    {"one_norm", {"model.parallel_residual=true", "model.shared_norm=true", "model.head_bias=true"}, 6},
    {"norms_behind",
     {"model.norm_position=post", "model.causal=false", "model.embedding_norm=true", "model.token_types=2",
      "model.head_transform=true", "model.head_bias=true", "model.dropout=0.2"}},
    {"norms_of_outputs",
     {"model.norm_position=both", "model.norm=rmsnorm", "model.activation=geglu_tanh", "model.bias=false",
      "model.qkv_bias=true", "model.logit_softcap=2", "model.embedding_scale=3", "model.ffn_dim=12",
      "model.norm_plus_one=true", "model.attention_softcap=2", "model.attention_scale=0.7", "model.window=3",
      "model.layers_without_window=[1]"}},
    {"norms_of_heads",
     {"model.norm=rmsnorm", "model.position=rope", "model.rotary_dim=2", "model.qk_norm=head", "model.head_dim=6",
      "model.rope_scaling=yarn", "model.rope_factor=2", "model.rope_original_block_size=8", "model.dropout=0.1"}},
};

struct Case {
  int form;
  int64_t data, tensor, stage = 0, accumulate = 1, shards = 1, parts = 1;
};

std::string nameOfCase(const testing::TestParamInfo<Case> &info) {
  const Case &c = info.param;
  return fmt::format("{}_data{}_tensor{}_zero{}_{}micro_{}shards{}", forms[c.form].name, c.data, c.tensor, c.stage,
                     c.accumulate, c.shards, c.parts > 1 ? fmt::format("_{}parts", c.parts) : "");
}

constexpr int64_t batchOfStep = 4, vocab = 13;

std::unique_ptr<Module> imported(const Case &c) {
  const Form &f = forms[c.form];
  std::vector<std::string> settings = {"model.preset=none",
                                       "model.n_layer=2",
                                       "model.n_head=4",
                                       "model.n_embd=16",
                                       fmt::format("model.vocab_size={}", vocab),
                                       fmt::format("model.block_size={}", f.block),
                                       "optimizer.lr=0.05",
                                       "optimizer.warmup_steps=1",
                                       "train.grad_clip=0.5",
                                       fmt::format("train.micro_batch={}", batchOfStep / c.data / c.accumulate),
                                       fmt::format("train.global_batch_tokens={}", batchOfStep / c.data * f.block)};
  settings.insert(settings.end(), f.settings.begin(), f.settings.end());
  std::unique_ptr<Module> m = buildModel(loadConfig("", settings, [](const std::string &) { return int64_t(0); }));
  m->attrs.set("mesh_data", c.data);
  m->attrs.set("mesh_tensor", c.tensor);
  m->attrs.set("zero_stage", c.stage);
  m->attrs.set("shards", c.shards);
  if (c.parts > 1)
    m->attrs.set("logical_tensor", c.parts);
  m->attrs.set("reduce_order", std::string("tree"));
  return m;
}

std::unique_ptr<Module> passed(const Case &c, const std::string &passes) {
  std::unique_ptr<Module> m = imported(c);
  PipelineOptions options;
  options.reproFile = "";
  runPipeline(*m, parsePipeline(passes, nullptr), options);
  EXPECT_EQ(verify(*m), std::vector<std::string>());
  return m;
}

constexpr const char *beforeGradients = "canonicalize,cse,dce,pad-vocab,shard-tensor";
constexpr const char *withGradients = "canonicalize,cse,dce,pad-vocab,shard-tensor,autodiff,canonicalize,cse,dce";
constexpr const char *joint = "canonicalize,cse,dce,pad-vocab,shard-tensor,autodiff,optimizer,canonicalize,cse,dce,"
                              "precision,logical-tensor,partition";

// ---- runs
// ------------------------------------------------------------------------------------------------------------

Tensor tokensOf(int64_t block, int64_t first, int64_t count, bool target) {
  Tensor t(Type(DType::i32, {count, block}));
  for (int64_t s = 0; s < count; ++s)
    for (int64_t i = 0; i < block; ++i) {
      const int64_t p = (first + s) * 31 + i + target;
      t.data[s * block + i] = target && p % 7 == 3 ? -1 : double((p * p + 3 * p) % vocab);
    }
  return t;
}

double validTargets(int64_t block) {
  double n = 0;
  for (double y : tokensOf(block, 0, batchOfStep, true).data)
    n += y >= 0;
  return n;
}

std::vector<std::vector<Tensor>> argumentsOf(const Case &c, int64_t micro, bool training) {
  const Mesh mesh{c.data, c.tensor};
  const int64_t block = forms[c.form].block, own = batchOfStep / c.data, count = own / c.accumulate;
  std::vector<std::vector<Tensor>> args;
  for (int64_t r = 0; r < mesh.ranks(); ++r) {
    const int64_t first = mesh.index("data", r) * own + micro * count;
    args.push_back({tokensOf(block, first, count, false), tokensOf(block, first, count, true)});
    if (training) {
      args.back().push_back(Tensor::scalar(double(first), DType::i64));
      args.back().push_back(Tensor::scalar(validTargets(block)));
    }
  }
  return args;
}

struct Trained {
  std::vector<double> results;
  std::map<std::string, std::vector<double>> states;  // wholes, without padding
};

Trained trainSteps(const Case &c, int steps) {
  const std::unique_ptr<Module> m = passed(c, joint);
  const Mesh mesh = Mesh::of(*m);
  std::vector<StateMap> states = initialStates(*m);
  std::vector<std::vector<Tensor>> results;
  for (int step = 0; step < steps; ++step) {
    if (const Function *f = m->function("train_step")) {
      results = interpretRanks(*f, argumentsOf(c, 0, true), states);
    } else {
      const std::vector<std::vector<Tensor>> count(mesh.ranks(), {Tensor::scalar(validTargets(forms[c.form].block))});
      for (int64_t micro = 0; micro < c.accumulate; ++micro) {
        interpretRanks(*m->function("accumulate"), argumentsOf(c, micro, true), states);
        const int64_t perShard = c.accumulate / c.shards, shard = micro / perShard;
        if ((micro + 1) % perShard == 0 && shard + 1 < c.shards)
          interpretRanks(*m->function(fmt::format("fold{}", std::countr_one(uint64_t(shard)))), count, states);
      }
      results = interpretRanks(*m->function("update"), count, states);
    }
  }
  Trained t;
  for (size_t i = 0; i < results[0].size(); ++i) {
    t.results.push_back(results[0][i].data[0]);
    for (const auto &of : results)
      EXPECT_EQ(of[i].data, results[0][i].data) << "all ranks return the same";
  }
  for (const auto &s : m->states)
    if (const std::string kind = s->attrs.getString("kind"); kind == "param" || kind == "moment")
      t.states[s->name] = withoutPadding(wholeType(*s), wholeOf(*s, mesh, [&](int64_t r) -> const Tensor & {
                                           return states[r].find(s->name)->second;
                                         }));
  return t;
}

class Tensors : public testing::TestWithParam<Case> {};

TEST_P(Tensors, TrainLikeOneRank) {
  const Case c = GetParam();
  const Trained got = trainSteps(c, 3), expected = trainSteps({c.form, 1, 1}, 3);
  expectNear(got.results, expected.results, "loss, norm and learning rate");
  ASSERT_EQ(got.states.size(), expected.states.size());
  for (const auto &[name, whole] : expected.states)
    expectNear(got.states.at(name), whole, name);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int form = 0; form < int(forms.size()); ++form) {
    all.push_back({form, 1, 2});
    if (form != 1 && form != 9)  // two heads of keys
      all.push_back({form, 1, 4});
    all.push_back({form, 1, 2, 0, 2, 1});
  }
  for (int64_t stage : {0, 1, 2, 3}) {
    for (int form : {0, 8})
      all.push_back({form, 2, 2, stage});
    for (int form : {1, 9})
      all.push_back({form, 2, 2, stage, 2, 2});
  }
  all.push_back({5, 2, 4, 3, 2, 2});
  for (int form = 0; form < int(forms.size()); ++form) {  // in logical parts
    if (form == 8 || form == 9)                           // adafactor
      continue;
    const int64_t parts = form == 1 ? 2 : 4;
    for (int64_t tensor : {1, 2})
      all.push_back({form, 1, tensor, 0, form % 2 + 1, 1, parts});
  }
  for (int form : {0, 3, 10, 14})
    all.push_back({form, 1, 4, 0, 1, 1, 4});
  for (int64_t stage : {0, 1, 2, 3})
    all.push_back({stage % 2 ? 0 : 13, 2, 2, stage, 2, 2, 4});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cases, Tensors, testing::ValuesIn(cases()), nameOfCase);

class TensorForms : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Forms, TensorForms, testing::Range(0, int(forms.size())),
                         [](const auto &info) { return std::string(forms[info.param].name); });

TEST_P(TensorForms, GradientsAreThoseOfOneRank) {
  const Case alone{GetParam(), 1, 1}, two{GetParam(), 1, 2};
  const std::unique_ptr<Module> whole = passed(alone, withGradients), m = passed(two, withGradients);
  std::vector<StateMap> wholeStates = initialStates(*whole), states = initialStates(*m);
  const auto expected = interpretRanks(*whole->function("train_step"), argumentsOf(alone, 0, true), wholeStates);
  const auto got = interpretRanks(*m->function("train_step"), argumentsOf(two, 0, true), states);
  expectNear(got[0][0].data, expected[0][0].data, "loss");
  size_t i = 1;
  for (const auto &s : m->states)
    if (s->attrs.getString("kind") == "param") {
      const std::vector<double> g = wholeOf(*s, Mesh::of(*m), [&](int64_t r) -> const Tensor & { return got[r][i]; });
      expectNear(withoutPadding(wholeType(*s), g), expected[0][i].data, s->name);
      ++i;
    }
  EXPECT_EQ(i, expected[0].size());
}

// A block that is not found would be computed whole by every rank: right, but no faster.
TEST_P(TensorForms, EveryBlockIsDivided) {
  const std::unique_ptr<Module> m = passed({GetParam(), 1, 2}, beforeGradients);
  int matrices = 0;
  for (const auto &s : m->states)
    if (s->type.rank() == 2 &&
        (s->name.find(".attn.c_") != std::string::npos || s->name.find(".mlp.c_") != std::string::npos)) {
      ++matrices;
      EXPECT_TRUE(Cut::of(*s, "tensor")) << s->name;
    }
  EXPECT_GE(matrices, 2 * 4);
  int scattered = 0;
  for (const Op &op : m->function("forward")->body)
    scattered += op.is(OpKind::reduce_scatter);
  EXPECT_EQ(scattered, 2 * 2) << "and ranks have parts of the tokens between them";
}

TEST_P(TensorForms, LossesOfTargetsAreThoseOfOneRank) {
  const Case alone{GetParam(), 1, 1}, two{GetParam(), 1, 2};
  const std::unique_ptr<Module> whole = passed(alone, beforeGradients), m = passed(two, beforeGradients);
  std::vector<StateMap> wholeStates = initialStates(*whole), states = initialStates(*m);
  const auto expected = interpretRanks(*whole->function("eval"), argumentsOf(alone, 0, false), wholeStates);
  for (const auto &of : interpretRanks(*m->function("eval"), argumentsOf(two, 0, false), states))
    expectNear(of[0].data, expected[0][0].data, "losses");
}

/// Generates with a rank and with two, or with one in two logical parts.
void expectSameTokens(const Case &alone, const Case &two, const char *passes) {
  const std::unique_ptr<Module> whole = passed(alone, beforeGradients), m = passed(two, passes);
  if (!whole->function("decode"))
    GTEST_SKIP() << "an encoder";
  std::vector<StateMap> wholeStates = initialStates(*whole), states = initialStates(*m);
  for (int64_t pos = 0; pos < 4; ++pos) {
    const std::vector<Tensor> args = {Tensor(Type(DType::i32, {1, 1}), {double(pos * 5 % vocab)}),
                                      Tensor::scalar(double(pos), DType::i64),
                                      Tensor(Type(DType::f32, {1, choose_token::columns}))};
    const auto expected =
        interpretRanks(*whole->function("decode"), std::vector<std::vector<Tensor>>{args}, wholeStates);
    for (const auto &of :
         interpretRanks(*m->function("decode"), std::vector<std::vector<Tensor>>(size_t(two.tensor), args), states)) {
      expectNear(of[0].data, expected[0][0].data, "logits");
      EXPECT_EQ(of[1].data, expected[0][1].data);
    }
  }
}

TEST_P(TensorForms, GenerateWithTheirPartsOfTheCache) {
  expectSameTokens({GetParam(), 1, 1}, {GetParam(), 1, 2}, beforeGradients);
}

// Of one token a product of all parts at once.
TEST_P(TensorForms, GenerateInLogicalParts) {
  const std::string name = forms[GetParam()].name;
  if (name.find("adafactor") == 0)
    GTEST_SKIP() << "has no logical parts";
  for (int64_t tensor : {1, 2})
    expectSameTokens({GetParam(), 1, 1}, {GetParam(), 1, tensor, 0, 1, 1, name == "llama" ? 2 : 4},
                     "canonicalize,cse,dce,pad-vocab,shard-tensor,logical-tensor");
}

int64_t countOf(const Module &m, llvm::StringRef function, OpKind kind) {
  int64_t n = 0;
  for (const Op &op : m.function(function)->body)
    n += op.is(kind);
  return n;
}

// Per layer and direction two gathers and two scatters, and one sum per parameter that is used on a part of the tokens.
TEST(TensorCost, NoMoreIsSentThanMegatronSends) {
  const std::unique_ptr<Module> m = passed({0, 1, 2}, joint);
  // Backward, what was scattered is gathered, and the other way round; of the table of positions the rows come
  // together.
  EXPECT_EQ(countOf(*m, "train_step", OpKind::all_gather), 4 + 4 + 1);
  EXPECT_EQ(countOf(*m, "train_step", OpKind::reduce_scatter), 4 + 4);
  // Loss, norm, wte once; in each layer two gains and biases of norms, two biases behind blocks; the last norm.
  EXPECT_EQ(countOf(*m, "train_step", OpKind::all_reduce), 3 + 2 * 6 + 2);
  EXPECT_EQ(countOf(*m, "train_step", OpKind::spread), 0);
}

TEST(TensorCost, WhatIsReadNarrowIsGatheredNarrow) {
  std::unique_ptr<Module> m = imported({0, 1, 2});
  m->attrs.set("compute", std::string("bf16"));
  PipelineOptions options;
  options.reproFile = "";
  runPipeline(*m, parsePipeline(joint, nullptr), options);
  int64_t narrow = 0, wide = 0;
  for (const Op &op : m->function("train_step")->body) {
    if (op.is(OpKind::all_gather))
      ++(op.result()->type.dtype == DType::bf16 ? narrow : wide);
    if (op.is(OpKind::reduce_scatter)) {
      EXPECT_EQ(op.result()->type.dtype, DType::f32) << "sums are not rounded on their way";
    }
  }
  EXPECT_EQ(narrow, 4 + 4);
  EXPECT_EQ(wide, 1) << "the gradient of the table of positions";
}

TEST(TensorMemory, PartsAreEqual) {
  const std::unique_ptr<Module> whole = passed({0, 1, 1}, joint), m = passed({0, 1, 4}, joint);
  for (const auto &s : m->states) {
    const bool cut = s->name.find("attn.c_attn") != std::string::npos ||
                     s->name.find("mlp.c_fc") != std::string::npos ||
                     s->name.find("c_proj.weight") != std::string::npos || s->name.find("_cache") != std::string::npos;
    EXPECT_EQ(s->type.bytes() * (cut ? 4 : 1), whole->state(s->name)->type.bytes()) << s->name;
  }
}

TEST(TensorNot, DividesWhatHasNoParts) {
  // Two heads of keys and values for four ranks.
  EXPECT_THROW(passed({1, 1, 4}, beforeGradients), UserError);
  EXPECT_THROW(passed({0, 1, 3}, beforeGradients), UserError);
  // A norm over all heads, of which each rank has some.
  try {
    std::unique_ptr<Module> m = buildModel(
        loadConfig("",
                   {"model.preset=none", "model.n_layer=1", "model.n_head=4", "model.n_embd=16", "model.vocab_size=13",
                    "model.block_size=8", "model.qk_norm=whole", "model.norm=rmsnorm", "train.micro_batch=1"},
                   [](const std::string &) { return int64_t(0); }));
    m->attrs.set("mesh_tensor", int64_t(2));
    PipelineOptions options;
    options.reproFile = "";
    runPipeline(*m, parsePipeline("shard-tensor", nullptr), options);
    FAIL();
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::NotBuiltYet);
    EXPECT_NE(e.diagnostics[0].message.find("qk_norm"), std::string::npos);
  }
  // Logical parts: three, of two ranks; of two heads of keys; of four ranks two; of adafactor.
  for (const Case &c : {Case{0, 1, 1, 0, 1, 1, 3}, {1, 1, 2, 0, 1, 1, 4}, {0, 1, 4, 0, 1, 1, 2}, {8, 1, 1, 0, 1, 1, 4}})
    EXPECT_THROW(passed(c, beforeGradients), UserError) << c.form << " " << c.parts;
  std::unique_ptr<Module> m = imported({0, 1, 1});
  const std::string before = print(*m);
  PipelineOptions options;
  runPipeline(*m, parsePipeline("shard-tensor", nullptr), options);
  EXPECT_EQ(print(*m), before) << "of one rank: nothing";
}

// ---- plans
// -----------------------------------------------------------------------------------------------------------

std::vector<float> floatsOf(const std::vector<char> &bytes) {
  std::vector<float> f(bytes.size() / sizeof(float));
  std::memcpy(f.data(), bytes.data(), bytes.size());
  return f;
}

double distance(const RanksOutcome &a, const RanksOutcome &b, const std::string &name) {
  const std::vector<float> x = floatsOf(a.states.at(name)), y = floatsOf(b.states.at(name));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst, std::fabs(double(x[i]) - double(y[i])));
  return worst;
}

// AdamW divides by the size of a gradient, so that rounding of one that is near zero shows in full; with a large eps
// it does not.
const std::vector<std::string> smooth = {"optimizer.eps=0.01"};

/// How far rounding alone moves results is seen between plans for one rank: in other orders of the same sums, each as
/// good as any.
class TensorPlans : public testing::Test {
protected:
  static void expectAsGoodAsOne(RankCut c) {
    RankCut one{1, 0, 4, "tree", c.compute, c.optimizer}, other{1, 0, 1, "fast", "fp32", c.optimizer};
    if (c.optimizer == "adamw")
      c.settings.insert(c.settings.end(), smooth.begin(), smooth.end());
    one.settings = other.settings = c.settings;
    const RanksOutcome a = train(one, 3), b = train(other, 3), got = train(c, 3);
    constexpr double factor = 16;
    for (size_t i = 0; i < a.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], a.losses[i], factor * std::fabs(a.losses[i] - b.losses[i]) + 0x1p-20 * a.losses[i])
          << i;
    EXPECT_LT(got.losses[2], got.losses[0]) << "it learns nothing";
    const double apart = farthest(a, b);
    ASSERT_GT(apart, 0);
    EXPECT_LE(farthest(a, got), factor * apart);
  }

  /// With narrow storage plans of one rank are also narrow or not, and add features in parts or not. Several ranks are
  /// as far from the wide plan as one rank is, so at most twice as far from one rank. This holds for the largest
  /// difference of all steps of several runs, and of all states; at a single one any two may be close by chance.
  static void expectAsGoodAsOneNarrow(RankCut c) {
    double moved = 0, movedStates = 0, ranks = 0, rankStates = 0;
    for (const char *rate : {"0.005", "0.0075", "0.01", "0.0125"}) {
      c.settings = smooth;
      c.settings.push_back(std::string("optimizer.lr=") + rate);
      RankCut one{1, 0, 4, "tree", c.compute, c.optimizer}, wide{1, 0, 1, "fast", "fp32", c.optimizer};
      one.settings = wide.settings = c.settings;
      RankCut parts = one;
      parts.settings.push_back(fmt::format("parallel.logical_tensor={}", c.tensor));
      const RanksOutcome a = train(one, 3), b = train(wide, 3), inParts = train(parts, 3), got = train(c, 3);
      for (size_t i = 0; i < a.losses.size(); ++i) {
        moved = std::max(
            {moved, double(std::fabs(a.losses[i] - b.losses[i])), double(std::fabs(a.losses[i] - inParts.losses[i]))});
        ranks = std::max(ranks, double(std::fabs(a.losses[i] - got.losses[i])));
      }
      movedStates = std::max({movedStates, farthest(a, b), farthest(a, inParts)});
      rankStates = std::max(rankStates, farthest(a, got));
      EXPECT_LT(got.losses[2], got.losses[0]) << "it learns nothing";
    }
    ASSERT_GT(moved, 0);
    EXPECT_LE(ranks, 2 * moved);
    EXPECT_LE(rankStates, 2 * movedStates);
  }

private:
  /// The largest difference of all states.
  static double farthest(const RanksOutcome &a, const RanksOutcome &b) {
    double most = 0;
    for (const auto &[name, bytes] : a.states)
      most = std::max(most, distance(a, b, name));
    return most;
  }
};

TEST_F(TensorPlans, TwoRanks) { expectAsGoodAsOne({1, 0, 4, "tree", "fp32", "adamw", 2}); }
TEST_F(TensorPlans, TwoRanksLowPrecision) { expectAsGoodAsOneNarrow({1, 0, 4, "tree", "bf16", "adamw", 2}); }
TEST_F(TensorPlans, Alibi) { expectAsGoodAsOne({1, 0, 4, "tree", "fp32", "adamw", 2, {"model.position=alibi"}}); }
TEST_F(TensorPlans, Adafactor) { expectAsGoodAsOne({2, 1, 2, "tree", "fp32", "adafactor", 2}); }
TEST_F(TensorPlans, TwoByTwoRanks) { expectAsGoodAsOne({2, 1, 2, "tree", "fp32", "adamw", 2}); }

// Ranks along "data" change no bit, in any stage, whatever the micro-batch: sequences are cut all alike.
TEST_F(TensorPlans, DataRanksGiveTheBitsOfOne) {
  for (const char *compute : {"fp32", "bf16"}) {
    const RanksOutcome expected = train({1, 0, 4, "tree", compute, "adamw", 2}, 3);
    for (const RankCut &c :
         {RankCut{1, 0, 8, "tree", compute, "adamw", 2}, RankCut{2, 0, 2, "tree", compute, "adamw", 2},
          RankCut{2, 1, 4, "tree", compute, "adamw", 2}, RankCut{2, 3, 2, "tree", compute, "adamw", 2}})
      EXPECT_TRUE(train(c, 3) == expected) << c.data << " " << c.stage << " " << c.microBatches << " " << compute;
  }
}

}  // namespace
}  // namespace gptc
