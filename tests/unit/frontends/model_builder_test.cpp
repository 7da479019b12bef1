#include "frontends/model_builder.h"

#include "ir/choose_token.h"
#include "ir/opdef.h"
#include "support/diagnostics.h"
#include "tests/support/interpreter_inputs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

using namespace gptc;

namespace {

Config smallConfig() {
  Config c;
  c.name = "small";
  c.model.nLayer = 2;
  c.model.nHead = c.model.nKvHead = 2;
  c.model.nEmbd = 8;
  c.model.ffnDim = 16;
  c.model.vocabSize = 11;
  c.model.blockSize = 6;
  c.train.microBatch = 2;
  c.train.globalBatchTokens = 24;
  c.train.accumulate = 2;
  return c;
}

std::vector<std::string> variants() {
  return {"plain",    "nobias",     "untied",     "rmsnorm",    "nopos",    "gqa",     "mqa",       "silu",
          "relu",     "relu2",      "gelu",       "swiglu",     "geglu",    "rope",    "alibi",     "embnorm",
          "llama",    "bloom",      "geglu_tanh", "headdim",    "somerope", "post",    "output",    "both",
          "parallel", "sharednorm", "types",      "scaled",     "softcap",  "biases",  "rotarydim", "llama3",
          "yarn",     "linear",     "window",     "softscores", "qkhead",   "qkwhole", "gemma",     "twothetas"};
}

/// As ModernBERT has them.
void makeTwoThetas(ModelConfig &m) {
  m.position = Position::rope;
  m.activation = Activation::geglu;
  m.embeddingNorm = m.headTransform = true;
  m.firstNorm = false;
  m.window = 3;
  m.layersWithoutWindow = {1};
  m.ropeTheta = 100;
  m.windowRopeTheta = 20;
}

Config variant(const std::string &name) {
  Config c = smallConfig();
  if (name == "nobias")
    c.model.bias = false;
  if (name == "untied")
    c.model.tieEmbeddings = false;
  if (name == "rmsnorm")
    c.model.norm = Norm::rmsnorm;
  if (name == "nopos")
    c.model.position = Position::none;
  if (name == "gqa") {
    c.model.nEmbd = 16;
    c.model.nHead = 4;
    c.model.nKvHead = 2;
  }
  if (name == "mqa")
    c.model.nKvHead = 1;
  c.model.activation = parseWord<Activation>(name).value_or(c.model.activation);
  c.model.position = parseWord<Position>(name).value_or(c.model.position);
  if (name == "embnorm")
    c.model.embeddingNorm = true;
  // An odd width, which heads need not divide.
  if (name == "headdim" || name == "somerope") {
    c.model.nEmbd = 7;
    c.model.nHead = 4;
    c.model.headDim = 6;
    c.model.position = Position::rope;
    c.model.ropeTheta = 100;
  }
  if (name == "somerope")
    c.model.layersWithoutRope = {0};
  c.model.normPosition = parseWord<NormPosition>(name).value_or(c.model.normPosition);
  c.model.parallelResidual = name == "parallel" || name == "sharednorm";
  c.model.sharedNorm = name == "sharednorm";
  if (name == "types") {
    c.model.tokenTypes = 3;
    c.model.headTransform = c.model.headBias = true;
  }
  if (name == "scaled")
    c.model.embeddingScale = 3;
  if (name == "softcap")
    c.model.logitSoftcap = 2;
  const bool rotates =
      name == "rotarydim" || parseWord<RopeScaling>(name).value_or(RopeScaling::none) != RopeScaling::none;
  if (rotates) {
    c.model.position = Position::rope;
    c.model.headDim = 8;
    c.model.ropeTheta = 100;
    c.model.ropeScaling = parseWord<RopeScaling>(name).value_or(RopeScaling::none);
    c.model.ropeFactor = name == "rotarydim" ? 1 : 4;
    c.model.ropeOriginal = 32;
    c.model.rotaryDim = name == "rotarydim" ? 4 : 0;
  }
  if (name == "window")
    c.model.window = 2;
  if (name == "softscores") {
    c.model.attentionSoftcap = 1;
    c.model.attentionScale = 0.7;
  }
  if (name == "qkhead" || name == "qkwhole") {
    c.model.position = Position::rope;
    c.model.nHead = 4;
    c.model.headDim = 6;
    c.model.qkNorm = name == "qkhead" ? QkNorm::head : QkNorm::whole;
  }
  if (name == "gemma") {
    c.model.norm = Norm::rmsnorm;
    c.model.normPosition = NormPosition::both;
    c.model.normPlusOne = true;
    c.model.window = 3;
    c.model.layersWithoutWindow = {1};
    c.model.attentionSoftcap = 2;
    c.model.qkNorm = QkNorm::head;
  }
  if (name == "twothetas")
    makeTwoThetas(c.model);
  if (name == "biases") {
    c.model.bias = false;
    c.model.qkvBias = c.model.normBias = true;
    c.model.headBias = true;
  }
  if (name == "llama") {
    c.model.norm = Norm::rmsnorm;
    c.model.activation = Activation::swiglu;
    c.model.position = Position::rope;
    c.model.bias = c.model.tieEmbeddings = false;
    c.model.nEmbd = 24;
    c.model.nHead = 6;
    c.model.nKvHead = 2;
  }
  if (name == "bloom") {
    c.model.position = Position::alibi;
    c.model.embeddingNorm = true;
    c.model.nEmbd = 12;
    c.model.nHead = 3;  // not a power of two
    c.model.nKvHead = 1;
  }
  return c;
}

class Variants : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(ModelBuilder, Variants, testing::ValuesIn(variants()), [](auto &info) { return info.param; });

TEST_P(Variants, AreValidAndPrintable) {
  for (bool decomposed : {false, true})
    for (double dropout : {0.0, 0.25}) {
      Config c = variant(GetParam());
      c.model.dropout = dropout;
      BuildOptions options;
      options.decomposedAttention = decomposed;
      auto m = buildModel(c, options);
      EXPECT_EQ(verify(*m), std::vector<std::string>{});
      const std::string text = print(*m);
      EXPECT_EQ(print(*parseModule(text, "m.gir")), text);
    }
}

const Tensor greedy{Type(DType::f32, {1, choose_token::columns})};  // all zeros

/// nll of x -> y for every position by single tokens through the cache: sum over log softmax.
double nllByDecoding(const Module &m, StateMap &states, const std::vector<double> &x, const std::vector<double> &y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const Tensor args[] = {integers(Type(DType::i32, {1, 1}), {x[i]}), Tensor::scalar(double(i), DType::i64), greedy};
    const std::vector<Tensor> out = interpret(*m.function("decode"), args, states);
    double total = 0;
    for (double l : out[0].data)
      total += std::exp(l);
    sum += std::log(total) - out[0].data[size_t(y[i])];
  }
  return sum;
}

TEST_P(Variants, DecodingAgreesWithEvaluation) {
  const Config c = variant(GetParam());
  const std::vector<double> x = {1, 5, 2, 10, 0, 3}, y = {5, 2, 10, 0, 3, 7};
  for (bool decomposed : {false, true}) {
    BuildOptions options;
    options.decomposedAttention = decomposed;
    auto m = buildModel(c, options);
    StateMap states = initialStates(*m, 3);
    // Larger weights than at the start of training, so that attention is not nearly uniform.
    for (auto &s : m->states)
      if (s->attrs.getString("kind") == "param")
        for (double &v : states[s->name].data)
          v = v * 20 + (s->attrs.getString("init") == "zeros" ? 0.1 : 0);
    const Type tokens(DType::i32, {2, 6});
    std::vector<double> xx = x, yy = y;
    xx.insert(xx.end(), x.begin(), x.end());
    yy.insert(yy.end(), 6, -1);  // the second sequence carries no loss
    const Tensor args[] = {integers(tokens, xx), integers(tokens, yy)};
    double expected = 0;
    const std::vector<Tensor> losses = interpret(*m->function("eval"), args, states);
    for (double nll : losses[0].data)
      expected += nll;
    EXPECT_GT(expected, 1);
    EXPECT_NEAR(nllByDecoding(*m, states, x, y), expected, 1e-9 * expected);

    // Without dropout @forward is @eval.
    const Tensor trainArgs[] = {args[0], args[1], Tensor::scalar(0, DType::i64)};
    EXPECT_NEAR(interpret(*m->function("forward"), trainArgs, states)[0].data[0], expected, 1e-12 * expected);
  }
}

TEST_P(Variants, PrefillAgreesWithDecoding) {
  Config c = variant(GetParam());
  auto m = buildModel(c);
  StateMap states = initialStates(*m, 3), other = initialStates(*m, 3);
  const std::vector<double> prompt = {4, 9, 1};
  std::vector<double> decoded;
  for (size_t i = 0; i < prompt.size(); ++i) {
    const Tensor args[] = {integers(Type(DType::i32, {1, 1}), {prompt[i]}), Tensor::scalar(double(i), DType::i64),
                           greedy};
    decoded = interpret(*m->function("decode"), args, states)[0].data;
  }
  // A prompt shorter than the prefill length, padded with anything.
  const Tensor args[] = {integers(Type(DType::i32, {1, 6}), {4, 9, 1, 7, 7, 7}), Tensor::scalar(0, DType::i64),
                         Tensor::scalar(2, DType::i64), greedy};
  std::vector<double> prefilled = interpret(*m->function("prefill"), args, other)[0].data;
  ASSERT_EQ(prefilled.size(), decoded.size());
  for (size_t i = 0; i < decoded.size(); ++i)
    EXPECT_NEAR(prefilled[i], decoded[i], 1e-9);
  // What was written past the prompt is overwritten before it is seen.
  const Tensor next[] = {integers(Type(DType::i32, {1, 1}), {2}), Tensor::scalar(3, DType::i64), greedy};
  decoded = interpret(*m->function("decode"), next, states)[0].data;
  prefilled = interpret(*m->function("decode"), next, other)[0].data;
  for (size_t i = 0; i < decoded.size(); ++i)
    EXPECT_NEAR(prefilled[i], decoded[i], 1e-9);
}

// Two sequences in slots, read together in pieces, say what each says alone by single tokens.
TEST_P(Variants, StepsOfSlotsAgreeWithDecoding) {
  const Config c = variant(GetParam());
  auto m = buildModel(c), serving = buildModel(c, {.slots = 3});
  EXPECT_EQ(verify(*serving), std::vector<std::string>{});
  EXPECT_FALSE(serving->function("forward") || serving->function("eval") || serving->function("decode"));
  const std::vector<double> prompts[] = {{4, 9, 1, 0, 6}, {5, 2, 2, 8, 3}};
  std::vector<std::vector<double>> expected[2];
  for (int s = 0; s < 2; ++s) {
    StateMap states = initialStates(*m, 3);
    for (size_t i = 0; i < 5; ++i) {
      const Tensor args[] = {integers(Type(DType::i32, {1, 1}), {prompts[s][i]}), Tensor::scalar(double(i), DType::i64),
                             greedy};
      expected[s].push_back(interpret(*m->function("decode"), args, states)[0].data);
    }
  }
  StateMap states = initialStates(*serving, 3);
  auto expectRow = [&](const std::vector<Tensor> &out, size_t row, const std::vector<double> &logits) {
    for (size_t i = 0; i < logits.size(); ++i)
      EXPECT_NEAR(out[0].data[row * logits.size() + i], logits[i], 1e-9) << row;
  };
  // Sequence 0 is in slot 2 and sequence 1 in slot 0. Three tokens of one and two of the other; one is none.
  const Tensor first[] = {integers(Type(DType::i32, {1, 6}), {4, 9, 5, 1, 2, 7}),
                          integers(Type(DType::i64, {6, 2}), {2, 0, 2, 1, 0, 0, 2, 2, 0, 1, 1, -1}),
                          integers(Type(DType::i64, {3}), {3, 4, 0}),
                          Tensor(Type(DType::f32, {3, greedy.type.dim(1)}))};
  std::vector<Tensor> out = interpret(*serving->function("step_6"), first, states);
  expectRow(out, 0, expected[0][2]);
  expectRow(out, 1, expected[1][1]);
  expectRow(out, 2, expected[0][0]);
  for (int row = 0; row < 3; ++row)
    EXPECT_EQ(out[0].data[size_t(row) * expected[0][0].size() + size_t(out[1].data[size_t(row)])],
              *std::max_element(out[0].data.begin() + row * int64_t(expected[0][0].size()),
                                out[0].data.begin() + (row + 1) * int64_t(expected[0][0].size())));
  const Tensor second[] = {integers(Type(DType::i32, {1, 2}), {2, 0}), integers(Type(DType::i64, {2, 2}), {0, 2, 2, 3}),
                           Tensor(Type(DType::f32, {2, greedy.type.dim(1)}))};
  out = interpret(*serving->function("step_2"), second, states);
  expectRow(out, 0, expected[1][2]);
  expectRow(out, 1, expected[0][3]);
  const Tensor third[] = {integers(Type(DType::i32, {1, 6}), {6, 8, 3, 0, 0, 0}),
                          integers(Type(DType::i64, {6, 2}), {2, 4, 0, 3, 0, 4, 0, -1, 0, -1, 0, -1})};
  out = interpret(*serving->function("score"), third, states);
  expectRow(out, 0, expected[0][4]);
  expectRow(out, 1, expected[1][3]);
  expectRow(out, 2, expected[1][4]);
}

// One layer without positions sees its past as a set; rope and alibi tell its order.
TEST(ModelBuilder, RopeAndAlibiTellTheOrder) {
  for (const char *name : {"rope", "alibi", "nopos"}) {
    Config c = variant(name);
    c.model.nLayer = 1;
    auto m = buildModel(c);
    StateMap states = initialStates(*m, 3);
    for (auto &s : m->states)
      if (s->attrs.getString("kind") == "param" && s->attrs.getString("init") == "normal")
        for (double &v : states[s->name].data)
          v *= 2;
    auto lastLogits = [&](const std::vector<double> &prompt) {
      std::vector<double> logits;
      for (size_t i = 0; i < prompt.size(); ++i) {
        const Tensor args[] = {integers(Type(DType::i32, {1, 1}), {prompt[i]}), Tensor::scalar(double(i), DType::i64),
                               greedy};
        logits = interpret(*m->function("decode"), args, states)[0].data;
      }
      return logits;
    };
    auto distance = [](const std::vector<double> &a, const std::vector<double> &b) {
      double most = 0;
      for (size_t i = 0; i < a.size(); ++i)
        most = std::max(most, std::fabs(a[i] - b[i]));
      return most;
    };
    const double order = distance(lastLogits({4, 9, 1}), lastLogits({9, 4, 1}));
    if (name == std::string("nopos"))
      EXPECT_LT(order, 1e-12);
    else
      EXPECT_GT(order, 1e-3) << name;
  }
}

TEST(ModelBuilder, AnEncoderSeesBothWaysAndHasNoCache) {
  for (Position position : {Position::learned, Position::rope, Position::alibi}) {
    Config c = smallConfig();
    c.model.causal = false;
    c.model.position = position;
    c.model.embeddingNorm = true;
    c.model.window = position == Position::rope ? 4 : 0;  // two of which reach the last token
    auto m = buildModel(c);
    EXPECT_EQ(verify(*m), std::vector<std::string>{});
    EXPECT_FALSE(m->function("decode") || m->function("prefill") || m->state("h.0.attn.k_cache"));
    EXPECT_EQ(m->attrs.getInt("mask_token"), c.model.vocabSize - 1);
    BuildOptions options;
    options.decomposedAttention = true;
    auto simple = buildModel(c, options);
    StateMap states = initialStates(*m, 3);
    for (auto &s : m->states)
      if (s->attrs.getString("kind") == "param" && s->attrs.getString("init") == "normal")
        for (double &v : states[s->name].data)
          v *= c.model.window ? 3 : 20;  // attention that looks at several tokens
    const Type tokens(DType::i32, {2, 6});
    auto losses = [&](const Module &module, double last) {
      const Tensor args[] = {integers(tokens, {1, 5, 2, 10, 0, last, 1, 1, 2, 3, 5, 8}),
                             integers(tokens, {3, -1, -1, -1, -1, -1, -1, 4, -1, -1, -1, -1})};
      return interpret(*module.function("eval"), args, states)[0].data;
    };
    const std::vector<double> fused = losses(*m, 3), apart = losses(*simple, 3), moved = losses(*m, 4);
    for (size_t i = 0; i < fused.size(); ++i)
      EXPECT_NEAR(fused[i], apart[i], 1e-9) << nameOf(position);
    EXPECT_EQ(fused[1], 0);
    EXPECT_GT(std::fabs(fused[0] - moved[0]), 1e-6) << "the first token must see the last; " << nameOf(position);
    EXPECT_EQ(fused[7], moved[7]) << "but no other sequence";
  }
}

TEST(ModelBuilder, StatesHaveNamesShapesAndDecay) {
  Config c = smallConfig();
  c.model.tieEmbeddings = false;
  auto m = buildModel(c);
  struct Expected {
    const char *name, *type;
    bool decay;
  };
  for (const Expected &e : {Expected{"wte.weight", "f32[11,8]", true},
                            {"wpe.weight", "f32[6,8]", true},
                            {"h.1.ln_1.weight", "f32[8]", false},
                            {"h.1.ln_1.bias", "f32[8]", false},
                            {"h.0.attn.c_attn.weight", "f32[8,24]", true},
                            {"h.0.attn.c_attn.bias", "f32[24]", false},
                            {"h.1.attn.c_proj.weight", "f32[8,8]", true},
                            {"h.1.mlp.c_fc.weight", "f32[8,16]", true},
                            {"h.1.mlp.c_proj.weight", "f32[16,8]", true},
                            {"ln_f.bias", "f32[8]", false},
                            {"lm_head.weight", "f32[11,8]", true},
                            {"h.1.attn.k_cache", "f32[2,6,4]", false}}) {
    State *s = m->state(e.name);
    ASSERT_TRUE(s) << e.name;
    EXPECT_EQ(s->type.str(), e.type) << e.name;
    EXPECT_EQ(s->attrs.getBool("decay"), e.decay) << e.name;
  }
  EXPECT_EQ(m->state("h.0.attn.c_attn.weight")->attrs.getString("hf"), "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(m->state("lm_head.weight")->attrs.getString("hf"), "lm_head.weight");
  const double linear = 0.02 * std::sqrt(768.0 / 8);  // the model's width is 8
  EXPECT_EQ(m->state("wte.weight")->attrs.getFloat("std"), 0.02);
  EXPECT_EQ(m->state("h.0.attn.c_attn.weight")->attrs.getFloat("std"), linear);
  EXPECT_EQ(m->state("h.0.attn.c_proj.weight")->attrs.getFloat("std"), linear / std::sqrt(4.0));

  std::set<int64_t> streams;
  int normal = 0;
  for (auto &s : m->states)
    if (s->attrs.getString("init") == "normal") {
      ++normal;
      streams.insert(s->attrs.getInt("stream"));
    }
  EXPECT_EQ(streams.size(), size_t(normal));
  EXPECT_EQ(m->attrs.getInt("accumulate"), 2);
  EXPECT_EQ(m->attrs.getInt("fold"), 6);
}

TEST(ModelBuilder, LlamasHaveTheirNamesInFiles) {
  auto m = buildModel(variant("llama"));
  auto hf = [&](const char *name) { return m->state(name)->attrs.getString("hf"); };
  EXPECT_EQ(hf("wte.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(hf("h.1.ln_1.weight"), "model.layers.1.input_layernorm.weight");
  EXPECT_EQ(hf("h.0.attn.c_attn.weight"), "model.layers.0.self_attn.q_proj.weight,model.layers.0.self_attn.k_proj."
                                          "weight,model.layers.0.self_attn.v_proj.weight");
  EXPECT_EQ(m->state("h.0.attn.c_attn.weight")->attrs.getInts("hf_split"), (std::vector<int64_t>{24, 8, 8}));
  EXPECT_EQ(hf("h.0.attn.c_proj.weight"), "model.layers.0.self_attn.o_proj.weight");
  EXPECT_EQ(hf("h.0.ln_2.weight"), "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(hf("h.0.mlp.c_gate.weight"), "model.layers.0.mlp.gate_proj.weight");
  EXPECT_EQ(hf("h.0.mlp.c_fc.weight"), "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(hf("h.0.mlp.c_proj.weight"), "model.layers.0.mlp.down_proj.weight");
  EXPECT_TRUE(m->state("h.0.mlp.c_proj.weight")->attrs.getBool("hf_transpose"));
  EXPECT_FALSE(m->state("wte.weight")->attrs.has("hf_transpose"));
  EXPECT_EQ(hf("ln_f.weight"), "model.norm.weight");
  EXPECT_EQ(hf("lm_head.weight"), "lm_head.weight");
}

/// The types of the states with these names, "-" for one that is missing.
std::vector<std::string> typesOf(const Module &m, std::initializer_list<const char *> names) {
  std::vector<std::string> types;
  for (const char *name : names)
    types.push_back(m.state(name) ? m.state(name)->type.str() : "-");
  return types;
}

using Types = std::vector<std::string>;

TEST(ModelBuilder, StatesOfModelsOfOtherPrograms) {
  auto m = buildModel(variant("headdim"));  // four heads of 6 and as many of keys, at a width of 7
  EXPECT_EQ(typesOf(*m, {"h.0.attn.c_attn.weight", "h.0.attn.c_proj.weight", "h.1.attn.k_cache"}),
            (Types{"f32[7,48]", "f32[24,7]", "f32[2,6,6]"}));
  m = buildModel(variant("qkhead"));
  EXPECT_EQ(typesOf(*m, {"h.1.attn.q_norm.weight", "h.1.attn.k_norm.weight"}), (Types{"f32[6]", "f32[6]"}));
  m = buildModel(variant("qkwhole"));
  EXPECT_EQ(typesOf(*m, {"h.1.attn.q_norm.weight", "h.1.attn.k_norm.weight"}), (Types{"f32[24]", "f32[12]"}));
  m = buildModel(variant("post"));
  EXPECT_EQ(typesOf(*m, {"h.1.ln_1.weight", "h.1.ln_2.weight", "h.1.ln_1_out.weight", "ln_f.weight"}),
            (Types{"f32[8]", "f32[8]", "-", "-"}));
  m = buildModel(variant("output"));
  EXPECT_EQ(
      typesOf(*m, {"h.1.ln_1.weight", "h.1.ln_2.weight", "h.1.ln_1_out.weight", "h.1.ln_2_out.bias", "ln_f.bias"}),
      (Types{"-", "-", "f32[8]", "f32[8]", "f32[8]"}));
  m = buildModel(variant("sharednorm"));
  EXPECT_EQ(typesOf(*m, {"h.0.ln_1.weight", "h.0.ln_2.weight"}), (Types{"f32[8]", "-"}));
  m = buildModel(variant("types"));
  EXPECT_EQ(typesOf(*m, {"wtt.weight", "head.dense.weight", "head.norm.bias", "lm_head.weight", "lm_head.bias"}),
            (Types{"f32[3,8]", "f32[8,8]", "f32[8]", "-", "f32[11]"}));
  m = buildModel(variant("biases"));
  EXPECT_EQ(typesOf(*m, {"h.0.attn.c_attn.bias", "h.0.attn.c_proj.bias", "h.0.mlp.c_fc.bias", "h.0.ln_1.bias"}),
            (Types{"f32[24]", "-", "-", "f32[8]"}));
  m = buildModel(variant("gemma"));
  for (const char *gain : {"h.0.ln_1.weight", "h.1.ln_2_out.weight", "h.0.attn.k_norm.weight", "ln_f.weight"})
    EXPECT_EQ(m->state(gain)->attrs.getString("init"), "zeros") << gain << " is added to 1";
}

TEST(ModelBuilder, ClassifiersSeeTypesOfTokens) {
  Config c = variant("types");
  c.model.causal = false;
  c.model.normPosition = NormPosition::post;
  c.model.blockSize = 20;
  const auto m = buildModel(c, {.embed = true, .labels = 3}), embeds = buildModel(c, {.embed = true});
  EXPECT_EQ(verify(*m), std::vector<std::string>{});
  ASSERT_EQ(m->functions.size(), 3u);
  EXPECT_TRUE(m->function("embed_16") && m->function("embed_32") && m->function("labels"));
  EXPECT_EQ(m->function("embed_32")->body.args.size(), 4u);
  EXPECT_EQ(embeds->function("embed_32")->body.args.size(), 3u);
  EXPECT_EQ(typesOf(*m, {"pooler.dense.weight", "classifier.weight", "classifier.bias", "lm_head.bias"}),
            (Types{"f32[8,8]", "f32[8,3]", "f32[3]", "-"}));
  StateMap states = initialStates(*m, 3), others;
  for (const auto &s : embeds->states)
    others[s->name] = states.at(s->name);
  // Texts of 3 and 5 tokens at 0 and 4.
  std::vector<double> tokens(16), positions(16), documents(32), types(16, 0);
  for (size_t i = 0; i < 16; ++i) {
    const size_t begin = i < 3 ? 0 : i >= 4 && i < 9 ? 4 : i;
    tokens[i] = double(i * 7 % 11);
    positions[i] = double(i - begin);
    documents[2 * i] = double(begin);
    documents[2 * i + 1] = double(i < 3 ? 3 : begin == 4 ? 9 : i + 1);
  }
  const Tensor tok = integers(Type(DType::i32, {1, 16}), tokens), at = integers(Type(DType::i64, {16}), positions),
               texts = integers(Type(DType::i64, {1, 16, 2}), documents);
  const auto vectorsOf = [&] {
    const Tensor args[] = {tok, at, texts, integers(Type(DType::i32, {1, 16}), types)};
    return interpret(*m->function("embed_16"), args, states)[0].data;
  };
  const Tensor args[] = {tok, at, texts};
  const std::vector<double> untyped = interpret(*embeds->function("embed_16"), args, others)[0].data,
                            same = vectorsOf();
  for (size_t i = 0; i < untyped.size(); ++i)
    EXPECT_NEAR(untyped[i], same[i], 1e-12);
  types[6] = 2;
  const std::vector<double> typed = vectorsOf();
  EXPECT_GT(std::abs(typed[4 * 8] - same[4 * 8]), 1e-6) << "the first token sees the type of another of its text";
  for (size_t i = 0; i < 3 * 8; ++i)
    EXPECT_NEAR(typed[i], same[i], 1e-12) << "of the other text";
  // A model of one type has nothing to say of it.
  c.model.tokenTypes = 1;
  EXPECT_EQ(buildModel(c, {.embed = true, .labels = 3})->function("embed_16")->body.args.size(), 3u);
}

TEST(ModelBuilder, AttributesOfAttentionAndRotations) {
  Config c = variant("gemma");
  c.model.position = Position::rope;
  c.model.headDim = 6;
  c.model.rotaryDim = 4;
  c.model.ropeTheta = 5e5;
  c.model.ropeScaling = RopeScaling::llama3;
  c.model.ropeFactor = 8;
  c.model.ropeOriginal = 64;
  c.model.attentionScale = 0.25;
  c.model.layersWithoutRope = {0};
  const auto m = buildModel(c);
  std::map<OpKind, int> found;
  for (const auto &f : m->functions)
    for (const Op &op : f->body) {
      if (op.isOneOf(OpKind::attention, OpKind::attention_cached)) {
        EXPECT_EQ(op.attrs.getInt("window"), op.layer == 1 ? 0 : 3) << print(op);
        EXPECT_EQ(op.attrs.getFloat("softcap"), 2);
        EXPECT_EQ(op.attrs.getFloat("scale"), 0.25);
      }
      if (op.is(OpKind::rope)) {
        EXPECT_EQ(op.layer, 1);
        EXPECT_EQ(op.attrs.getInt("rotary"), 4);
      }
      if (op.is(OpKind::rope_table)) {
        EXPECT_EQ(op.attrs.getFloat("theta"), 5e5);
        EXPECT_EQ(op.attrs.getString("scaling"), "llama3");
        EXPECT_EQ(op.result()->type.dim(1), 4);
      }
      ++found[op.kind];
    }
  EXPECT_EQ(found[OpKind::rope], 4) << "one of two layers, in four functions";
  EXPECT_EQ(found[OpKind::qk_norm], 8);
  EXPECT_EQ(found[OpKind::rope_table], 4);
  // What says nothing new is not said: a window of the whole context, the default's scale.
  c = smallConfig();
  c.model.window = c.model.blockSize;
  c.model.attentionScale = 0.5;  // of heads of 4
  const auto plain = buildModel(c);
  for (const Op &op : plain->function("forward")->body)
    EXPECT_FALSE(op.is(OpKind::attention) && (op.attrs.has("window") || op.attrs.has("scale"))) << print(op);
}

TEST(ModelBuilder, LayersWithAWindowMayRotateOtherwise) {
  Config c = variant("twothetas");
  c.model.causal = false;
  for (const int64_t window : {int64_t(3), c.model.blockSize}) {  // one that hides nothing, too
    c.model.window = window;
    const auto m = buildModel(c, {.embed = true});
    for (const auto &f : m->functions)
      for (const Op &op : f->body) {
        if (op.is(OpKind::rope)) {
          EXPECT_EQ(op.operand(1)->def->attrs.getFloat("theta"), op.layer == 1 ? 100 : 20) << print(op);
        }
        if (op.is(OpKind::attention)) {
          EXPECT_FALSE(op.attrs.getBool("causal", true));
          EXPECT_EQ(op.attrs.getInt("window"), op.layer == 1 || window != 3 ? 0 : 3) << print(op);
        }
      }
    EXPECT_FALSE(m->state("h.0.ln_1.weight"));
    EXPECT_TRUE(m->state("h.0.ln_2.weight") && m->state("h.1.ln_1.weight"));
  }
}

TEST(ModelBuilder, FactsSayOnlyWhatIsNotTheDefault) {
  Config c = smallConfig();
  const auto before = buildModel(c)->attrs;
  c.model.headDim = c.model.rotaryDim = 4;
  c.model.qkvBias = c.model.mlpBias = c.model.normBias = true;
  c.model.attentionScale = 0.5;
  EXPECT_EQ(buildModel(c)->attrs, before);
  c.model.headDim = 6;
  c.model.mlpBias = false;
  const auto m = buildModel(c);
  EXPECT_EQ(m->attrs.getInt("head_dim"), 6);
  EXPECT_EQ(m->attrs.getFloat("attention_scale"), 0.5) << "which is not that of heads of 6";
  EXPECT_FALSE(m->attrs.getBool("mlp_bias", true));
  EXPECT_FALSE(m->attrs.has("qkv_bias"));
}

TEST(ModelBuilder, EveryDropoutSiteHasItsStream) {
  Config c = smallConfig();
  c.model.dropout = 0.1;
  auto m = buildModel(c);
  std::set<int64_t> streams;
  int sites = 0;
  for (const Op &op : m->function("forward")->body)
    if (op.isOneOf(OpKind::dropout, OpKind::attention)) {
      ++sites;
      streams.insert(op.attrs.getInt("stream"));
      EXPECT_EQ(op.attrs.getFloat("p"), 0.1);
      EXPECT_EQ(op.numOperands(), 4u);
    }
  EXPECT_EQ(sites, 1 + 3 * 2);
  EXPECT_EQ(streams.size(), 7u);
  for (auto &s : m->states)
    EXPECT_FALSE(s->attrs.has("stream") && streams.count(s->attrs.getInt("stream")));
  for (const Op &op : m->function("eval")->body)
    EXPECT_FALSE(op.is(OpKind::dropout) || (op.is(OpKind::attention) && op.numOperands() > 1));
}

TEST(ModelBuilder, OpsSayWhereTheyCameFrom) {
  auto m = buildModel(smallConfig());
  for (const Op &op : m->function("forward")->body)
    EXPECT_TRUE(op.loc != "" || op.is(OpKind::ret)) << print(op);
  const std::string text = print(*m->function("forward"));
  EXPECT_NE(text.find("layer=1 loc(\"h1.mlp.c_fc\")"), std::string::npos) << text;
}

TEST(ModelBuilder, NormsHaveTheirEpsilon) {
  for (Norm norm : {Norm::layernorm, Norm::rmsnorm})
    for (double eps : {1e-5, 1e-6}) {
      Config c = smallConfig();
      c.model.norm = norm;
      c.model.normEps = eps;
      const auto m = buildModel(c);
      EXPECT_EQ(m->attrs.has("norm_eps"), eps != 1e-5) << "modules and plans of before say nothing";
      int norms = 0;
      for (const auto &f : m->functions)
        for (const Op &op : f->body)
          if (op.isOneOf(OpKind::layernorm, OpKind::rmsnorm)) {
            ++norms;
            EXPECT_EQ(op.attrs.getFloat("eps"), eps) << op.loc;
          }
      EXPECT_EQ(norms, 4 * 5) << "two per layer and one at the end, in each function";
    }
}

TEST(ModelBuilder, FoldDividesTheBlock) {
  EXPECT_EQ(foldOf(1024), 256);
  EXPECT_EQ(foldOf(64), 64);
  EXPECT_EQ(foldOf(257), 1);
  EXPECT_EQ(foldOf(300), 150);
}

TEST(ModelBuilder, RefusesAbsurdSizes) {
  Config c = smallConfig();
  c.model.nLayer = 1000;
  c.model.nEmbd = 65536;
  c.model.ffnDim = 4 * 65536;
  try {
    buildModel(c);
    FAIL();
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].code, ErrorCode::TooLarge);
  }
}

TEST(ModelBuilder, RefusesAbsurdBatches) {
  for (int which = 0; which < 3; ++which) {  // the widest: queries, keys and values; the feed-forward; the vocabulary
    Config c = smallConfig();
    c.model.blockSize = c.train.microBatch = 1 << 20;
    c.model.ffnDim = which == 1 ? 65 : 1;
    c.model.vocabSize = which == 2 ? 65 : 1;
    c.model.nEmbd = which == 0 ? 22 : 1;
    c.model.nHead = c.model.nKvHead = 1;
    try {
      buildModel(c);
      FAIL() << which;
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::TooLarge);
    }
  }
}

TEST(ModelBuilder, BlockOfOneToken) {
  Config c = smallConfig();
  c.model.blockSize = 1;
  auto m = buildModel(c);
  EXPECT_EQ(verify(*m), std::vector<std::string>{});
  EXPECT_EQ(m->function("prefill")->body.args.size(), 3u);  // the one token is the last
}

}  // namespace
