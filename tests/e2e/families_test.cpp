// Architectures of other programs: what transformers computes for a small model of each family (families/goldens.py)
// against plans for the CPU and the float64 interpreter, and for the folder that gptc exports of it.
#include "tests/support/harness.h"
#include "tests/support/oracles.h"

#include "frontends/toml_config.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "runtime/checkpoint/checkpoint_saver.h"
#include "runtime/checkpoint/state.h"
#include "runtime/train/session.h"
#include "support/json.h"
#include "tools/compiler/compile.h"

#include <cmath>
#include <fstream>
#include <sstream>

using namespace gptc;

namespace {

using json = nlohmann::json;

constexpr int64_t B = 2;

uint32_t bitsOf(const std::string &name, uint32_t i) {
  uint32_t h = 2166136261u;
  for (unsigned char c : name)
    h = (h ^ c) * 16777619u;
  uint32_t z = h + i * 0x9e3779b9u;
  z = (z ^ z >> 16) * 0x85ebca6bu;
  z = (z ^ z >> 13) * 0xc2b2ae35u;
  return (z ^ z >> 16) >> 8;
}

/// The content of a parameter: `fill` of goldens.py.
std::vector<float> contentOf(const State &s, bool plusOne) {
  std::vector<float> content(s.type.elements());
  const bool vector = s.type.rank() == 1, gain = vector && llvm::StringRef(s.name).ends_with(".weight");
  for (size_t i = 0; i < content.size(); ++i) {
    const double u = double(bitsOf(s.name, uint32_t(i))) / 0x1p24 - 0.5;
    content[i] = float(vector ? u * 0.5 + (gain && !plusOne ? 1 : 0) : u);
  }
  return content;
}

double relativeL2(const std::vector<double> &got, const std::vector<double> &want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

double nllOf(const double *logits, int64_t vocab, int64_t target) {
  double sum = 0;
  for (int64_t v = 0; v < vocab; ++v)
    sum += std::exp(logits[v]);
  return std::log(sum) - logits[target];
}

struct Families : ::testing::TestWithParam<const char *> {
  void SetUp() override {
    std::ostringstream text;
    text << std::ifstream(fmt::format("{}/tests/e2e/families/{}.json", GPTC_SOURCE_DIR, GetParam())).rdbuf();
    golden = parseJson<json>(text.str());
    x = golden.at("x").get<std::vector<int32_t>>();
    y = golden.at("y").get<std::vector<int32_t>>();
    logits = golden.at("logits").get<std::vector<double>>();
    auto settings = golden.at("model").get<std::vector<std::string>>();
    // Without clipping and decay, and with this beta, first moments are the gradients.
    for (const char *more : {"model.dropout=0", "train.global_batch_tokens=16", "train.micro_batch=2",
                             "train.grad_clip=0", "optimizer.weight_decay=0", "optimizer.betas=[0, 0.99]"})
      settings.push_back(more);
    Config config;
    Plan plan;
    compilePlan({w.modelFile(), settings, w.path("plan"), e2e::cacheDir(), {}}, config, plan);
    s = std::make_unique<Session>(loadPlan(w.path("plan")), e2e::cacheDir(), 2);
    initializeStates(s->executor, 1);
    const bool plusOne = fact<&ModelFacts::normPlusOne>(*s->plan.planned);
    for (const auto &state : s->plan.planned->states)
      if (kindOf(*state) == StateKind::param) {
        const std::vector<float> content = contentOf(*state, plusOne);
        copyToPadded(state->type, content.data(), s->executor.view(*state, StateAccess::readAndWrite).data);
      }
    fillCopies(s->executor);
    T = fact<&ModelFacts::blockSize>(*s->plan.planned);
    V = fact<&ModelFacts::vocabSize>(*s->plan.planned);
    valid = float(B * T - std::count(y.begin(), y.end(), -1));
  }

  std::vector<double> gradientOf(const std::string &name) const {
    return golden.at("gradients").at(name).get<std::vector<double>>();
  }
  std::vector<double> resultOf(const char *f, int64_t n) const {
    const float *p = static_cast<const float *>(s->executor.result(f, 0));
    return {p, p + n};
  }

  json golden;
  std::vector<int32_t> x, y;
  std::vector<double> logits;  // [B,T,V]
  int64_t T = 0, V = 0;
  float valid = 0;
  std::unique_ptr<Session> s;
  e2e::Workplace w;
};

INSTANTIATE_TEST_SUITE_P(Of, Families,
                         ::testing::Values("gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "gpt_neox",
                                           "bloom", "phi", "gemma2", "bert"),
                         [](const auto &info) { return std::string(info.param); });

TEST_P(Families, LossesAndEveryGradientAreTransformers) {
  s->executor.run("eval", {x.data(), y.data()});
  std::vector<double> losses;
  for (int64_t i = 0; i < B * T; ++i)
    losses.push_back(y[i] < 0 ? 0 : nllOf(&logits[i * V], V, y[i]));
  EXPECT_LE(relativeL2(resultOf("eval", B * T), losses), 1e-5);

  const int64_t seq0 = 0;
  s->executor.run("train_step", {x.data(), y.data(), &seq0, &valid});
  const double loss = golden.at("loss");
  EXPECT_NEAR(resultOf("train_step", 1)[0], loss, 1e-5 * loss);
  size_t gradients = 0;
  for (const auto &state : s->plan.planned->states) {
    if (!llvm::StringRef(state->name).starts_with("m."))
      continue;
    ++gradients;
    std::vector<float> dense(state->type.elements());
    copyFromPadded(state->type, s->executor.view(*state, StateAccess::read).data, dense.data());
    EXPECT_LE(relativeL2({dense.begin(), dense.end()}, gradientOf(state->name.substr(2))), 1e-5) << state->name;
  }
  EXPECT_EQ(gradients, golden.at("gradients").size());
  EXPECT_TRUE(s->executor.intact());
}

// Of two forms: the ops of the plan, and attention from simple ops.
TEST_P(Families, TheInterpreterAgrees) {
  const Module &joint = *s->plan.joint;
  StateMap states;
  for (const auto &state : joint.states) {
    states[state->name] = Tensor(Type(state->type.dtype, state->type.dims));
    if (kindOf(*state) == StateKind::param) {
      const std::vector<float> content = contentOf(*state, fact<&ModelFacts::normPlusOne>(joint));
      states[state->name].data.assign(content.begin(), content.end());
    }
  }
  const Type tokens(DType::i32, {B, T});
  const std::vector<Tensor> given = {Tensor(tokens, {x.begin(), x.end()}), Tensor(tokens, {y.begin(), y.end()}),
                                     Tensor::scalar(0, DType::i64), Tensor::scalar(valid)};
  const double loss = golden.at("loss");
  // Parts of transformers' models compute in float32 whatever they are asked for.
  EXPECT_NEAR(interpret(*joint.function("train_step"), given, states)[0].data[0], loss, 1e-6 * loss);
  for (const auto &[name, gradient] : golden.at("gradients").items())
    EXPECT_LE(relativeL2(states["m." + name].data, gradient.get<std::vector<double>>()), 3e-6) << name;
}

TEST_P(Families, LogitsByDecodingAreTransformers) {
  if (!s->plan.planned->function("decode"))
    GTEST_SKIP() << "an encoder has no cache";
  std::vector<double> decoded;
  for (int64_t pos = 0; pos < T; ++pos) {
    s->executor.run("decode", {&x[pos], &pos});
    for (double l : resultOf("decode", V))
      decoded.push_back(l);
  }
  EXPECT_LE(relativeL2(decoded, {logits.begin(), logits.begin() + T * V}), 1e-5);
  const int64_t pos = 0, last = T - 1;
  s->executor.run("prefill", {&x[T], &pos, &last});
  EXPECT_LE(relativeL2(resultOf("prefill", V), {logits.end() - V, logits.end()}), 1e-5);
}

// Skipped where transformers is missing.
TEST_P(Families, TransformersComputesTheSameWithAnExport) {
  const CheckpointStore store(w.path("out"));
  CheckpointInfo info;
  info.step = 1;
  info.planHash = s->plan.hash;
  info.model = modelIdentity(*s->plan.planned);
  CheckpointSaver(s->executor, store, false, s->plan.hf).save(info, 0);
  const e2e::Result r = w.gptc({"export", w.path("out"), "-o", w.path("hf")});
  ASSERT_EQ(r.code, 0) << r.output;
  for (const std::string &version : test::transformersPaths()) {
    const test::Compared c = test::compareBy(
        "tests/e2e/families/open_export.py",
        fmt::format("'{}' '{}/tests/e2e/families/{}.json'", w.path("hf"), GPTC_SOURCE_DIR, GetParam()), version);
    if (c.isMissing())
      GTEST_SKIP() << c.said;
    EXPECT_EQ(c.code, 0) << c.said;
    fmt::print("{}", c.said);
  }
}

}  // namespace
