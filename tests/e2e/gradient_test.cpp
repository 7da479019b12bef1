// The first step of compiled plans against the float64 interpreter on the same weights and tokens.
#include "tests/support/harness.h"

#include "frontends/toml_config.h"
#include "ir/choose_token.h"
#include "ir/opdef.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/state.h"
#include "runtime/serve/sample.h"
#include "runtime/train/session.h"
#include "tools/compiler/compile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <regex>

using namespace gptc;

namespace {

struct Case {
  const char *name;
  std::vector<std::string> settings;
};

void PrintTo(const Case &c, std::ostream *out) { *out << c.name; }

Tensor fromMemory(const Type &t, const void *data) {
  Tensor r(Type(t.dtype, t.dims));
  std::vector<char> dense(t.elements() * sizeOf(t.dtype));
  copyFromPadded(t, data, dense.data());
  for (size_t i = 0; i < r.data.size(); ++i)
    switch (t.dtype) {
    case DType::f32:
      r.data[i] = reinterpret_cast<const float *>(dense.data())[i];
      break;
    case DType::i32:
      r.data[i] = reinterpret_cast<const int32_t *>(dense.data())[i];
      break;
    case DType::i64:
      r.data[i] = double(reinterpret_cast<const int64_t *>(dense.data())[i]);
      break;
    default:
      ADD_FAILURE() << t.str();
    }
  return r;
}

double relativeL2(const std::vector<double> &got, const std::vector<double> &want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

/// Texts of 1 to T tokens, one a row, whose later tokens have type 1.
struct Texts {
  std::vector<int64_t> documents;
  std::vector<int32_t> types;

  Texts() = default;
  Texts(int64_t rows, int64_t T) {
    for (int64_t b = 0; b < rows; ++b) {
      const int64_t length = b % 4 == 1 ? T : 1 + b * 5 % T;
      for (int64_t t = 0; t < T; ++t) {
        documents.push_back(t < length ? 0 : t);
        documents.push_back(t < length ? length : t + 1);
        types.push_back(t > length / 2 && t < length);
      }
    }
  }
  Tensor documentsOf(int64_t row, int64_t rows, int64_t T) const {
    const auto from = documents.begin() + 2 * row * T;
    return Tensor(Type(DType::i64, {rows, T, 2}), std::vector<double>(from, from + 2 * rows * T));
  }
  Tensor typesOf(int64_t row, int64_t rows, int64_t T) const {
    const auto from = types.begin() + row * T;
    return Tensor(Type(DType::i32, {rows, T}), std::vector<double>(from, from + rows * T));
  }
};

/// The settings of a model in BERT's form.
std::vector<std::string> bertAnd(const std::vector<std::string> &more) {
  std::vector<std::string> all = {"optimizer.eps=0.01",        "model.causal=false",   "model.norm_position=post",
                                  "model.embedding_norm=true", "model.token_types=2",  "model.head_transform=true",
                                  "model.head_bias=true",      "model.activation=gelu"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct StepZero : ::testing::TestWithParam<Case> {
  /// The plan of the tiny model with further settings, ready to run with initial values.
  std::unique_ptr<Session> open(const std::vector<std::string> &settings) {
    Config config;
    Plan plan;
    compilePlan({w.modelFile(), settings, w.path("plan"), e2e::cacheDir(), {}}, config, plan);
    auto s = std::make_unique<Session>(loadPlan(w.path("plan")), e2e::cacheDir(), 2);
    initializeStates(s->executor, s->plan.run.seed);
    return s;
  }
  StateMap states(const Session &s) {
    StateMap m;
    for (const auto &state : s.plan.planned->states)
      m[state->name] = fromMemory(state->type, s.executor.view(*state, StateAccess::read).data);
    return m;
  }
  e2e::Workplace w;
};

TEST_P(StepZero, LossAndEveryGradientEqualTheInterpreters) {
  std::vector<std::string> settings = GetParam().settings;
  // No clipping and no decay: the moments then are the gradients times constants.
  settings.insert(settings.end(), {"train.grad_clip=0", "optimizer.weight_decay=0"});
  std::unique_ptr<Session> s = open(settings);
  const Module &joint = *s->plan.joint;
  const int64_t B = joint.attrs.getInt("micro_batch"), T = joint.attrs.getInt("block_size"),
                N = joint.attrs.getInt("accumulate"), labels = joint.attrs.getInt("labels");
  // Biases and gains away from 0 and 1, so that every term counts.
  for (const auto &state : joint.states)
    if (state->attrs.getString("kind") == "param" && state->type.rank() == 1) {
      const StateView view = s->executor.view(*state, StateAccess::readAndWrite);
      float *p = view.as<float>();
      for (int64_t i = 0; i < state->type.elements(); ++i)
        p[i] += 0.1f * std::sin(float(i + state->name.size()));
    }
  StateMap want = states(*s);

  std::vector<int32_t> x(N * B * T), y(x.size());
  uint32_t random = 1;
  float valid = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    random = random * 1664525u + 1013904223u;
    x[i] = (random >> 10) % 64;
    y[i] = i % 7 == 3 ? -1 : (random >> 20) % 64;
    valid += y[i] >= 0;
  }
  Texts texts;
  if (labels) {
    y.resize(size_t(N * B));
    for (int32_t &label : y)
      label = int32_t((random = random * 1664525u + 1013904223u) >> 20) % int32_t(labels);
    valid = float(y.size());
    texts = Texts(N * B, T);
  }
  float loss = 0;
  double wantLoss = 0, wantNorm = 0;
  for (int64_t k = 0; k < N; ++k) {
    int64_t seq0 = k * B;
    const int64_t perRow = labels ? 1 : T;
    std::vector<const void *> args = {&x[k * B * T], &y[k * B * perRow]};
    Tensor tokens(Type(DType::i32, {B, T}), std::vector<double>(&x[k * B * T], &x[k * B * T] + B * T));
    Tensor targets(Type(DType::i32, {B, perRow}),
                   std::vector<double>(&y[k * B * perRow], &y[k * B * perRow] + B * perRow));
    std::vector<Tensor> given = {tokens, targets};
    if (labels) {
      args.insert(args.end(), {&texts.documents[size_t(2 * k * B * T)], &texts.types[size_t(k * B * T)]});
      given.push_back(texts.documentsOf(k * B, B, T));
      given.push_back(texts.typesOf(k * B, B, T));
    }
    args.insert(args.end(), {&seq0, &valid});
    s->executor.run(N > 1 ? "accumulate" : "train_step", args);
    given.push_back(Tensor::scalar(double(seq0), DType::i64));
    given.push_back(Tensor::scalar(valid));
    std::vector<Tensor> results = interpret(*joint.function(N > 1 ? "accumulate" : "train_step"), given, want);
    if (N == 1)
      wantLoss = results[0].data[0], wantNorm = results[1].data[0];
  }
  float norm = 0;
  const char *last = N > 1 ? "update" : "train_step";
  if (N > 1) {
    s->executor.run("update", {&valid});
    std::vector<Tensor> given = {Tensor::scalar(valid)};
    std::vector<Tensor> results = interpret(*joint.function("update"), given, want);
    wantLoss = results[0].data[0], wantNorm = results[1].data[0];
  }
  std::memcpy(&loss, s->executor.result(last, 0), sizeof loss);
  std::memcpy(&norm, s->executor.result(last, 1), sizeof norm);
  EXPECT_NEAR(loss, wantLoss, 1e-5 * wantLoss);
  EXPECT_NEAR(norm, wantNorm, 1e-5 * wantNorm);
  EXPECT_GT(wantNorm, 0.01);

  int moments = 0, zero = 0;
  for (const auto &state : s->plan.planned->states) {
    Tensor got = fromMemory(state->type, s->executor.view(*state, StateAccess::read).data);
    const Tensor &expected = want[state->name];
    // m = (1 - beta1) g, v = (1 - beta2) g^2: the relative error of the square may be twice that of the gradient.
    double limit = llvm::StringRef(state->name).starts_with("v.") ? 2e-5 : 1e-5;
    // A shift of all keys changes no softmax, so the gradient of the keys' bias is exactly zero and what is computed is
    // rounding. AdamW divides it by its own size: the new parameter tells nothing there, its moments do.
    if (!llvm::StringRef(state->name).starts_with("h.") || !llvm::StringRef(state->name).ends_with("c_attn.bias")) {
      EXPECT_LE(relativeL2(got.data, expected.data), limit) << state->name;
    }
    if (llvm::StringRef(state->name).starts_with("m.")) {
      ++moments;
      double sum = 0;
      for (double v : expected.data)
        sum += std::abs(v);
      zero += sum == 0;
    }
  }
  EXPECT_GT(moments, 10);
  EXPECT_EQ(zero, 0) << "a gradient that is zero says nothing";
  EXPECT_TRUE(s->executor.intact());
}

INSTANTIATE_TEST_SUITE_P(
    Models, StepZero,
    ::testing::Values(
        Case{"tied_bias", {"model.dropout=0"}},
        Case{"untied_bias_dropout", {"model.tie_embeddings=false", "model.dropout=0.2"}},
        Case{"tied_nobias_dropout", {"model.bias=false", "model.dropout=0.2"}},
        Case{"untied_nobias", {"model.tie_embeddings=false", "model.bias=false", "model.dropout=0"}},
        Case{"accumulate4_tied", {"train.micro_batch=1", "model.dropout=0.2"}},
        Case{"accumulate4_untied_nobias", {"train.micro_batch=1", "model.tie_embeddings=false", "model.bias=false"}},
        Case{"rmsnorm_silu_gqa",
             {"model.norm=\"rmsnorm\"", "model.activation=\"silu\"", "model.n_head=4", "model.n_kv_head=2"}},
        Case{"relu_odd_sizes",
             {"model.activation=\"relu\"", "model.n_embd=36", "model.n_head=3", "model.block_size=13",
              "model.vocab_size=67", "train.global_batch_tokens=52"}},
        Case{"llama_gqa",
             {"model.preset=llama", "model.norm=rmsnorm", "model.activation=swiglu", "model.position=rope",
              "model.bias=false", "model.tie_embeddings=false", "model.n_head=4", "model.n_kv_head=2"}},
        Case{"bloom_dropout_mqa",
             {"model.position=alibi", "model.embedding_norm=true", "model.n_embd=36", "model.n_head=3",
              "model.n_kv_head=1", "model.dropout=0.2"}},
        Case{"encoder_dropout",
             {"model.causal=false", "model.activation=gelu", "model.embedding_norm=true", "model.dropout=0.2"}},
        Case{"encoder_alibi", {"model.causal=false", "model.position=alibi", "model.activation=geglu"}},
        Case{"rope_relu2_accumulate",
             {"model.position=rope", "model.activation=relu2", "model.dropout=0.2", "train.micro_batch=1"}},
        // AdamW divides by the size of a gradient, so that rounding of one that is near zero shows in full; with a
        // large eps it does not.
        Case{"side_by_side_dropout",
             {"optimizer.eps=0.01", "model.parallel_residual=true", "model.shared_norm=true", "model.position=rope",
              "model.rotary_dim=4", "model.head_bias=true", "model.tie_embeddings=false", "model.dropout=0.2"}},
        Case{"gemma_accumulate",
             {"model.norm=rmsnorm", "model.norm_plus_one=true", "model.norm_position=both", "model.position=rope",
              "model.head_dim=12", "model.window=5", "model.layers_without_window=[1]", "model.attention_softcap=2",
              "model.attention_scale=0.5", "model.logit_softcap=3", "model.embedding_scale=5.5",
              "model.activation=geglu_tanh", "model.bias=false", "model.dropout=0.1", "train.micro_batch=1"}},
        Case{"norms_of_heads_dropout",
             {"model.norm=rmsnorm", "model.qk_norm=head", "model.head_dim=24", "model.n_kv_head=1", "model.window=7",
              "model.position=rope", "model.rope_scaling=yarn", "model.rope_factor=4",
              "model.rope_original_block_size=64", "model.qkv_bias=false", "model.dropout=0.2"}},
        // Small embeddings vanish beside normed outputs, which attention makes alike: then gradients cancel.
        Case{"norms_of_outputs",
             {"model.embedding_scale=50", "model.norm=rmsnorm", "model.qk_norm=whole", "model.norm_position=output",
              "model.position=rope", "model.layers_without_rope=[0]", "model.n_head=4", "model.n_kv_head=2",
              "model.dropout=0"}},
        Case{"bert_dropout", bertAnd({"model.dropout=0.2"})},
        Case{"labels", bertAnd({"model.labels=3", "model.dropout=0"})},
        Case{"labels_dropout_accumulate", bertAnd({"model.labels=2", "model.dropout=0.2", "train.micro_batch=1"})}),
    [](const auto &info) { return info.param.name; });

struct Cache : StepZero {
  void expectAgreement(std::vector<std::string> settings);
};

TEST_F(Cache, PrefillAndDecodeAgreeWithEachOtherAndTheInterpreter) { expectAgreement({}); }
TEST_F(Cache, WithRotatedGroupedKeys) {
  expectAgreement(
      {"model.position=rope", "model.norm=rmsnorm", "model.activation=swiglu", "model.n_head=4", "model.n_kv_head=2"});
}
TEST_F(Cache, WithAlibiAndOneHeadOfKeys) {
  expectAgreement(
      {"model.position=alibi", "model.embedding_norm=true", "model.n_embd=36", "model.n_head=3", "model.n_kv_head=1"});
}

TEST_F(Cache, WithAWindowNormsOfHeadsAndScaledRotations) {
  expectAgreement({"model.norm=rmsnorm", "model.qk_norm=head", "model.head_dim=24", "model.n_kv_head=1",
                   "model.window=19", "model.layers_without_window=[1]", "model.position=rope", "model.rotary_dim=12",
                   "model.rope_scaling=llama3", "model.rope_factor=4", "model.rope_original_block_size=64",
                   "model.attention_softcap=3", "model.logit_softcap=4"});
}

void Cache::expectAgreement(std::vector<std::string> settings) {
  settings.insert(settings.end(), {"model.block_size=80", "train.global_batch_tokens=80", "train.micro_batch=1"});
  std::unique_ptr<Session> s = open(settings);
  const Module &m = *s->plan.planned;
  const int64_t P = m.attrs.getInt("prefill"), V = m.attrs.getInt("vocab_size");
  ASSERT_EQ(P, 64);
  std::vector<int32_t> tokens(80);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = int32_t(i * i * 7 + 3) % 64;
  auto logits = [&](const char *f) {
    const float *p = static_cast<const float *>(s->executor.result(f, 0));
    return std::vector<double>(p, p + V);
  };
  const std::array<float, choose_token::columns> greedy{};
  // All by decode, and what the interpreter says.
  StateMap state = states(*s);
  std::vector<std::vector<double>> byDecode;
  for (int64_t pos = 0; pos < 80; ++pos) {
    s->executor.run("decode", {&tokens[pos], &pos, greedy.data()});
    byDecode.push_back(logits("decode"));
    if (pos > 4)
      continue;
    std::vector<Tensor> args = {Tensor(Type(DType::i32, {1, 1}), {double(tokens[pos])}),
                                Tensor::scalar(double(pos), DType::i64),
                                Tensor(Type(DType::f32, {1, choose_token::columns}))};
    std::vector<Tensor> want = interpret(*s->plan.joint->function("decode"), args, state);
    EXPECT_LE(relativeL2(byDecode.back(), want[0].data), 1e-5) << pos;
    const int32_t id = *static_cast<const int32_t *>(s->executor.result("decode", 1));
    EXPECT_EQ(id, std::max_element(byDecode.back().begin(), byDecode.back().end()) - byDecode.back().begin()) << pos;
  }
  // All at once, without a cache: the loss of each next token.
  {
    std::vector<int32_t> next(tokens.begin() + 1, tokens.end());
    next.push_back(-1);
    s->executor.run("eval", {tokens.data(), next.data()});
    const float *nll = static_cast<const float *>(s->executor.result("eval", 0));
    std::vector<double> uncached(nll, nll + 79), cached;
    for (int64_t i = 0; i < 79; ++i) {
      double sum = 0;
      for (double l : byDecode[i])
        sum += std::exp(l);
      cached.push_back(std::log(sum) - byDecode[i][next[i]]);
    }
    EXPECT_LE(relativeL2(cached, uncached), 1e-5);
  }
  // Pieces: short and padded, exactly one, and two that overlap.
  for (int64_t n : {int64_t(1), int64_t(5), P, int64_t(75), int64_t(80)}) {
    std::vector<int32_t> part(P, 0);
    for (int64_t pos = 0; pos < n; pos += P) {
      int64_t start = std::min(pos, std::max<int64_t>(0, n - P)), count = std::min(P, n - start), last = count - 1;
      std::copy_n(tokens.begin() + start, count, part.begin());
      s->executor.run("prefill", {part.data(), &start, &last, greedy.data()});
    }
    EXPECT_LE(relativeL2(logits("prefill"), byDecode[n - 1]), 1e-5) << n;
    if (n < 80) {
      s->executor.run("decode", {&tokens[n], &n, greedy.data()});
      EXPECT_LE(relativeL2(logits("decode"), byDecode[n]), 1e-5) << n;
    }
  }
}

// A Llama's weights go to files as Hugging Face has them, and come back.
TEST_F(Cache, WeightsOfALlamaUnderItsNames) {
  const std::vector<std::string> llama = {
      "model.norm=rmsnorm", "model.activation=swiglu", "model.position=rope",  "model.bias=false",
      "model.n_head=4",     "model.n_kv_head=2",       "model.vocab_size=100", "train.steps=1"};
  w.compile("plan", llama);
  ASSERT_EQ(w.gptrun({w.path("plan")}).code, 0);
  const std::string saved = w.path("out/checkpoints/") + w.checkpoints(w.path("out")).back();
  SafetensorsFile file(saved + "/model.safetensors");
  EXPECT_TRUE(file.find("model.embed_tokens.weight") && file.find("model.norm.weight"));
  EXPECT_FALSE(file.find("lm_head.weight")) << "tied";
  const TensorInfo *v = file.find("model.layers.1.self_attn.v_proj.weight");
  ASSERT_TRUE(v);
  EXPECT_EQ(v->shape, (std::vector<int64_t>{16, 32}));
  std::vector<float> x(16 * 32);
  file.read(*v, x.data());

  std::vector<std::string> again = llama;
  again.push_back("model.init_from=ckpt:" + saved);
  std::unique_ptr<Session> s = open(again);
  loadWeights(s->executor, saved, modelIdentity(s->executor.planned()));
  const StateView view = s->executor.view(*s->plan.planned->state("h.1.attn.c_attn.weight"), StateAccess::read);
  const float *packed = view.as<float>();
  for (int out = 0; out < 16; ++out)
    for (int in = 0; in < 32; ++in)
      ASSERT_EQ(x[out * 32 + in], packed[in * 64 + 32 + 16 + out]);
}

TEST_F(Cache, SamplingGoesOnPastTheContext) {
  std::unique_ptr<Session> s = open({});
  auto draw = [&](uint64_t seed, int64_t n, const std::vector<int32_t> &prompt = {1, 2, 3}) {
    std::vector<int32_t> out;
    sampleTokens(s->executor, prompt, {.maxTokens = n, .temperature = 1, .seed = seed}, [&](int32_t t) {
      out.push_back(t);
      return true;
    });
    return out;
  };
  std::vector<int32_t> a = draw(1, 100), b = draw(1, 100), c = draw(2, 100);
  EXPECT_EQ(a.size(), 100u);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  EXPECT_EQ(draw(1, 30), std::vector<int32_t>(a.begin(), a.begin() + 30));
  EXPECT_EQ(draw(3, 5, std::vector<int32_t>(50, 7)).size(), 5u) << "a prompt longer than the context keeps its end";
}

// Plans of earlier versions choose no token: the op's meaning does, by their logits.
TEST_F(Cache, PlansThatOnlyYieldLogitsWriteTheSame) {
  ASSERT_EQ(w.gptc({"compile", w.modelFile(), "-o", w.path("plan"), "--dump-dir", w.path("dump")}).code, 0);
  std::string text = e2e::readFile(w.path("dump/03-dce.gir"));
  const std::regex how(", %how: f32\\[1,5\\]"), type("(-> \\(f32\\[1,\\d+\\]), i32\\[1\\]\\)"),
      choice("\n *(%\\w+) = choose_token [^\n]*(\n *return %\\w+), \\1");
  for (const auto &[what, by] : {std::pair(how, ""), {type, "$1)"}, {choice, "$2"}}) {
    ASSERT_EQ(std::distance(std::sregex_iterator(text.begin(), text.end(), what), std::sregex_iterator()), 2) << text;
    text = std::regex_replace(text, what, by);
  }
  e2e::writeFile(w.path("older.gir"), text);
  const e2e::Result r = w.gptc({"compile", w.path("older.gir"), "-o", w.path("older")});
  ASSERT_EQ(r.code, 0) << r.output;
  std::vector<std::vector<int32_t>> written;
  for (const char *plan : {"plan", "older"}) {
    Session s(loadPlan(w.path(plan)), e2e::cacheDir(), 2);
    initializeStates(s.executor, s.plan.run.seed);
    EXPECT_EQ(choosesTokens(*s.plan.planned->function("decode")), plan == std::string("plan"));
    for (double temperature : {0.0, 0.9}) {
      written.emplace_back();
      const SampleOptions options{.maxTokens = 60, .temperature = temperature, .topK = 20, .topP = 0.95};
      sampleTokens(s.executor, {1, 2, 3}, options, [&](int32_t t) {
        written.back().push_back(t);
        return true;
      });
    }
  }
  EXPECT_EQ(written[0], written[2]);
  EXPECT_EQ(written[1], written[3]);
  EXPECT_NE(written[0], written[1]);
}

}  // namespace
