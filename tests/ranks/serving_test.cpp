// Ranks that continue texts together: in the interpreter they come to what one rank comes to with the whole module, in
// float64, with their parts of a cache with slots; and their plans come as near to that as the plan of one rank.
#include "tests/ranks/parts.h"
#include "tests/support/interpreter_inputs.h"
#include "tests/support/rank_threads.h"

#include "codegen/codegen.h"
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/choose_token.h"
#include "ir/quantized.h"
#include "passes/pass.h"
#include "runtime/checkpoint/state.h"
#include "runtime/serve/generator.h"
#include "runtime/train/digests.h"
#include "support/diagnostics.h"
#include "tools/planner/codegen_passes.h"

#include <map>

namespace gptc {
namespace {

using Settings = std::vector<std::string>;

struct Form {
  const char *name;
  Settings settings;
};

const std::vector<Form> forms = {
    {"gpt2", {}},
    {"llama",
     {"model.norm=rmsnorm", "model.activation=swiglu", "model.position=rope", "model.bias=false", "model.n_kv_head=2",
      "model.ffn_dim=24"}},
    {"gated_bias", {"model.activation=geglu", "model.ffn_dim=20", "model.tie_embeddings=false"}},
    {"alibi", {"model.position=alibi"}},
    // Slopes of two kinds: of the eight first heads and of the others.
    {"alibi_twelve_heads", {"model.position=alibi", "model.n_head=12", "model.n_embd=24"}},
    {"side_by_side",
     {"model.parallel_residual=true", "model.position=rope", "model.head_dim=6", "model.n_embd=10", "model.ffn_dim=12",
      "model.layers_without_rope=[1]"}},
    {"norms_of_outputs",
     {"model.norm_position=both", "model.norm=rmsnorm", "model.activation=geglu_tanh", "model.bias=false",
      "model.qkv_bias=true", "model.logit_softcap=2", "model.embedding_scale=3", "model.ffn_dim=12",
      "model.norm_plus_one=true", "model.attention_softcap=2", "model.attention_scale=0.7", "model.window=3",
      "model.layers_without_window=[1]"}},
    {"norms_of_heads",
     {"model.norm=rmsnorm", "model.position=rope", "model.rotary_dim=2", "model.qk_norm=head", "model.head_dim=6"}},
    {"cache_of_8_bits", {"model.head_dim=32", "precision.cache=q8_0"}},
    {"alibi_and_cache_of_8_bits", {"model.head_dim=32", "precision.cache=q8_0", "model.position=alibi"}},
};
constexpr int llamaForm = 1;  // which has two heads of keys

constexpr int64_t vocab = 13, block = 8, slots = 3, layers = 2;

std::unique_ptr<Module> imported(const Settings &more, int64_t tensor, int64_t slotCount = slots) {
  Settings settings = {"model.preset=none",
                       "model.n_head=4",
                       "model.n_embd=16",
                       fmt::format("model.n_layer={}", layers),
                       fmt::format("model.vocab_size={}", vocab),
                       fmt::format("model.block_size={}", block),
                       "train.micro_batch=1",
                       "compile.remat=none"};
  settings.insert(settings.end(), more.begin(), more.end());
  std::unique_ptr<Module> m =
      buildModel(loadConfig("", settings, [](const std::string &) { return int64_t(0); }), {.slots = slotCount});
  m->attrs.set("mesh_data", int64_t(1));
  m->attrs.set("mesh_tensor", tensor);
  return m;
}

void run(Module &m, const std::string &passes, const Target *target = nullptr) {
  PipelineOptions options;
  options.reproFile = "";
  runPipeline(m, parsePipeline(passes, target), options);
  EXPECT_EQ(verify(m), std::vector<std::string>());
}

constexpr const char *untilShared = "canonicalize,cse,dce,pad-vocab,shard-tensor";

std::unique_ptr<Module> shared(const Settings &settings, int64_t tensor) {
  std::unique_ptr<Module> m = imported(settings, tensor);
  run(*m, untilShared);
  return m;
}

// ---- in the interpreter
// -----------------------------------------------------------------------------------------------

struct Call {
  const char *function;
  std::vector<double> tokens, places, rows;  // places: a slot and a position for each token
};

/// Prompts of two slots and a token that is none; a token of each, one of them the first of its slot; one and two
/// tokens; and the second prompt anew, with the logits behind each token.
const std::vector<Call> calls = {
    {"step_8", {1, 2, 3, 4, 5, 6, 7, 0}, {0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 2, 0, 2, 1, -1, -1}, {4, 6, 0}},
    {"step_3", {8, 9, 10}, {2, 2, 1, 0, 0, 5}, {}},
    {"step_1", {11}, {1, 1}, {}},
    {"step_2", {12, 0}, {0, 6, 2, 3}, {}},
    {"score", {9, 11, 5, 1, 0, 0, 0, 0}, {1, 0, 1, 1, 1, 2, 1, 3, -1, -1, -1, -1, -1, -1, -1, -1}, {}},
};

std::vector<Tensor> argumentsOf(const Function &f, const Call &c) {
  const auto n = int64_t(c.tokens.size());
  std::vector<Tensor> args = {Tensor(Type(DType::i32, {1, n}), c.tokens), Tensor(Type(DType::i64, {n, 2}), c.places)};
  if (!c.rows.empty())
    args.emplace_back(Type(DType::i64, {int64_t(c.rows.size())}), c.rows);
  if (f.body.args.size() > args.size())
    args.emplace_back(f.body.args.back()->type);  // how: the likeliest
  return args;
}

class Serving : public testing::TestWithParam<int> {
protected:
  const Settings &settings() const { return forms[size_t(GetParam())].settings; }
  /// How many ranks can share it.
  std::vector<int64_t> tensors() const {
    return GetParam() == llamaForm ? std::vector<int64_t>{2} : std::vector<int64_t>{2, 4};
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, Serving, testing::Range(0, int(forms.size())),
                         [](const auto &info) { return std::string(forms[size_t(info.param)].name); });

TEST_P(Serving, WithTheirPartsOfTheSlotsRanksComeToTheLogitsOfOne) {
  for (const int64_t tensor : tensors()) {
    const std::unique_ptr<Module> whole = shared(settings(), 1), m = shared(settings(), tensor);
    std::vector<StateMap> wholeStates = initialStates(*whole), states = initialStates(*m);
    for (const Call &call : calls) {
      const Function &f = *whole->function(call.function);
      const std::vector<Tensor> args = argumentsOf(f, call);
      const auto expected = interpretRanks(f, std::vector<std::vector<Tensor>>{args}, wholeStates);
      const auto got =
          interpretRanks(*m->function(call.function), std::vector<std::vector<Tensor>>(size_t(tensor), args), states);
      for (const std::vector<Tensor> &of : got) {
        expectNear(of[0].data, expected[0][0].data, fmt::format("logits of {} on {} ranks", call.function, tensor));
        for (size_t i = 0; i < of.size(); ++i)
          EXPECT_EQ(of[i].data, got[0][i].data) << call.function << ": all ranks have the same bits";
        if (of.size() > 1) {
          EXPECT_EQ(of[1].data, expected[0][1].data) << call.function;
        }
      }
    }
  }
}

// A block that is not found would be computed whole by every rank: right, but no faster. A part of the tokens would
// give a token other sums in calls of other sizes.
TEST_P(Serving, EveryBlockIsDividedAndItsTermsAreAddedOnAllRanks) {
  const std::unique_ptr<Module> whole = shared(settings(), 1), m = shared(settings(), 2);
  for (const auto &s : m->states) {
    const bool vector = s->type.rank() == 1;
    const bool cut = (!vector && s->name.find(".attn.c_") != std::string::npos) ||
                     (!vector && s->name.find(".mlp.c_") != std::string::npos) ||
                     s->name.find(".c_attn.bias") != std::string::npos ||
                     s->name.find(".c_fc.bias") != std::string::npos ||
                     s->name.find(".c_gate.bias") != std::string::npos || s->name.find("_cache") != std::string::npos ||
                     s->name.find("_scales") != std::string::npos;
    EXPECT_EQ(s->type.bytes() * (cut ? 2 : 1), whole->state(s->name)->type.bytes()) << s->name;
    if (s->name.find("_cache") != std::string::npos) {
      EXPECT_EQ(s->type.dim(0), slots) << "every slot is on every rank, with some of its heads";
    }
  }
  for (const auto &f : m->functions) {
    std::map<OpKind, int> count;
    for (const Op &op : f->body)
      ++count[op.kind];
    EXPECT_EQ(count[OpKind::all_reduce], 2 * layers) << f->name;
    for (const OpKind kind : {OpKind::all_gather, OpKind::reduce_scatter, OpKind::own_part, OpKind::spread})
      EXPECT_EQ(count[kind], 0) << f->name << " " << nameOf(kind).str();
  }
}

ErrorCode codeOf(const std::function<void()> &work, std::string *message = nullptr) {
  try {
    work();
  } catch (const UserError &e) {
    if (message)
      *message = e.diagnostics[0].message;
    return e.diagnostics[0].code;
  }
  return ErrorCode::Internal;
}

TEST(ServingNot, OnRanksThatDoNotDivideTheHeads) {
  EXPECT_EQ(codeOf([] { shared(forms[llamaForm].settings, 4); }), ErrorCode::ShapeMismatch) << "two heads of keys";
  EXPECT_EQ(codeOf([] { shared({}, 3); }), ErrorCode::ShapeMismatch);
  EXPECT_EQ(codeOf([] { shared({"model.qk_norm=whole", "model.norm=rmsnorm"}, 2); }), ErrorCode::NotBuiltYet);
}

// ---- weights in few bits
// ----------------------------------------------------------------------------------------------

constexpr const char *untilQuantized = "canonicalize,cse,dce,pad-vocab,shard-tensor,precision,quantize-weights";

std::unique_ptr<Module> quantized(Settings settings, const char *weights, int64_t tensor) {
  settings.push_back(fmt::format("precision.weights={}", weights));
  std::unique_ptr<Module> m = imported(settings, tensor);
  run(*m, untilQuantized);
  return m;
}

TEST(ServingFewBits, ARankHasBlocksOfTheWhole) {
  const Settings settings = {"model.n_embd=64"};
  for (const char *weights : {"q8_0", "q4_0"}) {
    const std::unique_ptr<Module> whole = quantized(settings, weights, 1), m = quantized(settings, weights, 2);
    size_t halved = 0;
    for (const auto &s : m->states) {
      if (s->attrs.getString("kind") != "quantized")
        continue;
      const State *all = whole->state(s->name);
      ASSERT_TRUE(all) << s->name;
      EXPECT_EQ(s->type.dtype, all->type.dtype) << s->name;
      // Columns are cut by panels, rows by blocks; the classifier is whole.
      const bool rows = s->name.find("c_proj") != std::string::npos, head = s->name.find("wte") != std::string::npos;
      halved += !head;
      EXPECT_EQ(s->type.dim(1) * (rows ? 2 : 1), all->type.dim(1)) << s->name;
      EXPECT_EQ(s->type.dim(0) * (rows || head ? 1 : 2), all->type.dim(0)) << s->name;
    }
    EXPECT_EQ(halved, size_t(layers * 4 * 2)) << weights;
  }
}

TEST(ServingFewBits, BordersOfRanksLieBetweenBlocks) {
  std::string message;
  for (const char *weights : {"q8_0", "q4_0"})
    EXPECT_EQ(codeOf([&] { quantized({"model.n_embd=64"}, weights, 4); }, &message), ErrorCode::ShapeMismatch);
  EXPECT_EQ(message, "64 inputs of h.0.attn.c_proj.weight on 4 ranks are 16 on each, which are no whole blocks of 32 "
                     "(q4_0)");
  // Blocks of 256: 512 inputs are two of them.
  const Settings wide = {"model.n_embd=512"};
  EXPECT_TRUE(quantized(wide, "q4_k", 2)->state("supers.h.0.attn.c_proj.weight"));
  EXPECT_EQ(codeOf([&] { quantized(wide, "q4_k", 4); }, &message), ErrorCode::ShapeMismatch);
  EXPECT_NE(message.find("no whole blocks of 256 (q4_k)"), std::string::npos) << message;
  // What has no blocks on one rank has none on several.
  EXPECT_EQ(codeOf([&] { quantized({"model.n_embd=48"}, "q8_0", 2); }), ErrorCode::Internal);
}

// ---- plans
// ------------------------------------------------------------------------------------------------------------

const Settings gpt2 = {"model.n_embd=64", "model.n_layer=1", "model.vocab_size=61", "model.block_size=80"};
const Settings llama = {"model.n_embd=64",    "model.n_layer=1",         "model.vocab_size=61", "model.block_size=80",
                        "model.norm=rmsnorm", "model.activation=swiglu", "model.position=rope", "model.bias=false",
                        "model.n_head=8",     "model.n_kv_head=4",       "model.ffn_dim=96"};
constexpr int64_t length = 70;

std::unique_ptr<Module> planned(Settings settings, int64_t tensor, const std::string &compute) {
  registerCodegenPasses();
  const Target target = hostTarget(1);
  settings.push_back("precision.compute=" + compute);
  std::unique_ptr<Module> m = imported(settings, tensor);
  run(*m, defaultPipeline(), &target);
  return m;
}

std::vector<int32_t> sequence(int64_t n, int64_t seed) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i)
    tokens.push_back(int32_t((i * i * 7 + seed * i + 3) % 61));
  return tokens;
}

using Logits = std::vector<std::vector<float>>;

/// The logits behind each token of a sequence, read alone, in float64.
std::vector<std::vector<double>> referenceOf(const Settings &settings) {
  const std::unique_ptr<Module> m = imported(settings, 1);
  run(*m, untilShared);
  std::vector<StateMap> states = {initialStates(*m, 7)};
  const std::vector<int32_t> tokens = sequence(length, 1);
  const int64_t piece = m->function("score")->body.args[0]->type.dim(1);
  std::vector<std::vector<double>> all;
  for (int64_t begin = 0; begin < length; begin += piece) {
    Call c{"score", std::vector<double>(size_t(piece), 0), std::vector<double>(size_t(2 * piece), -1), {}};
    const int64_t end = std::min(length, begin + piece);
    for (int64_t i = begin; i < end; ++i) {
      c.tokens[size_t(i - begin)] = tokens[size_t(i)];
      c.places[size_t(2 * (i - begin))] = 1;
      c.places[size_t(2 * (i - begin)) + 1] = double(i);
    }
    const Function &f = *m->function("score");
    const auto results = interpretRanks(f, std::vector<std::vector<Tensor>>{argumentsOf(f, c)}, states);
    for (int64_t i = 0; i < end - begin; ++i) {
      const auto row = results[0][0].data.begin() + i * 61;
      all.emplace_back(row, row + 61);
    }
  }
  return all;
}

/// The same of a plan, on all its ranks; and that a token has these bits in whatever piece it is read, beside others.
Logits logitsOf(const Settings &settings, int64_t tensor, const std::string &compute) {
  const std::unique_ptr<Module> m = planned(settings, tensor, compute);
  std::vector<Logits> of(static_cast<size_t>(tensor));
  onRanks(*m, hostTarget(1), [&](int rank, Executor &executor) {
    initializeStates(executor, 7);
    CachedModel model(executor);
    const std::vector<int32_t> tokens = sequence(length, 1), others = sequence(length, 2);
    Logits &logits = of[size_t(rank)];
    for (int64_t begin = 0; begin < length;) {
      const int64_t end = model.score(1, tokens, begin, {});
      for (int64_t i = begin; i < end; ++i)
        logits.push_back(model.logits(i - begin).vec());
      begin = end;
    }
    static const HowToChoose greedy{};
    constexpr int64_t pieces[] = {1, 7, 1, 30, 2, 13};
    int64_t at = 0, other = 0;
    for (size_t call = 0; at < length; ++call) {
      const int64_t end = std::min(length, at + pieces[call % 6]), otherEnd = std::min(length, other + 3);
      std::vector<CachedModel::Part> parts;
      if (call % 2 && other < otherEnd)
        parts.push_back({.slot = 2, .tokens = others, .begin = other, .end = otherEnd, .hows = greedy});
      parts.push_back({.slot = 0, .tokens = tokens, .begin = at, .end = end, .hows = greedy});
      model.read(parts);
      EXPECT_EQ(model.logits(int64_t(parts.size()) - 1).vec(), logits[size_t(end) - 1])
          << compute << " on " << tensor << " ranks, up to token " << end;
      other = parts.size() > 1 ? otherEnd : other;
      at = end;
    }
  });
  for (const Logits &logits : of)
    EXPECT_EQ(logits, of[0]) << "all ranks have the same bits";
  return of[0];
}

double distance(const Logits &logits, const std::vector<std::vector<double>> &reference) {
  double worst = 0;
  EXPECT_EQ(logits.size(), reference.size());
  for (size_t i = 0; i < logits.size(); ++i)
    for (size_t t = 0; t < reference[i].size(); ++t)
      worst = std::max(worst, std::fabs(double(logits[i][t]) - reference[i][t]));
  return worst;
}

/// Ranks round as often as one rank does, and add the same terms in another order, which is as good as any: their
/// largest distance from float64 is about that of one rank.
void expectAsNearAsOne(const Settings &settings, const std::vector<int64_t> &tensors, const std::string &compute) {
  const std::vector<std::vector<double>> reference = referenceOf(settings);
  const double one = distance(logitsOf(settings, 1, compute), reference);
  ASSERT_GT(one, 0);
  ASSERT_LT(one, compute == "fp32" ? 1e-4 : 0.1);
  for (const int64_t tensor : tensors)
    EXPECT_LE(distance(logitsOf(settings, tensor, compute), reference), 4 * one) << tensor << " ranks, " << compute;
}

TEST(ServingPlans, OfGpt2AreAsNearAsOneRanks) {
  expectAsNearAsOne(gpt2, {2, 4}, "fp32");
  expectAsNearAsOne(gpt2, {2}, "bf16");
}
TEST(ServingPlans, OfLlamaAreAsNearAsOneRanks) {
  expectAsNearAsOne(llama, {2, 4}, "fp32");
  expectAsNearAsOne(llama, {2}, "bf16");
}

/// What a generator with these slots makes of several prompts, some of which begin alike: tokens and their scores.
struct Made {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> scores;
  bool operator==(const Made &) const = default;
};

std::vector<Made> generated(const Settings &settings, int64_t tensor) {
  const std::unique_ptr<Module> m = planned(settings, tensor, "fp32");
  std::vector<Made> of(static_cast<size_t>(tensor));
  onRanks(*m, hostTarget(1), [&](int rank, Executor &executor) {
    initializeStates(executor, 7);
    Made &made = of[size_t(rank)];
    const std::vector<int64_t> lengths = {20, 1, 67, 21, 33, 20};
    made.tokens.resize(lengths.size());
    made.scores.resize(lengths.size());
    Generator generator(executor, {.guesses = 2});
    for (size_t i = 0; i < lengths.size(); ++i) {
      Generation g{.prompt = sequence(lengths[i], i == 4 ? 5 : 1), .sample = i, .scores = 2};
      g.options.maxTokens = i == 2 ? 30 : 12;  // one of them slides
      g.options.temperature = i % 2 ? 0.9 : 0;
      g.options.seed = 40 + i;
      g.onToken = [&made, i](int32_t token, const TokenScores *scores) {
        made.tokens[i].push_back(token);
        made.scores[i].push_back(float(scores->logProbability));
        return i != 3 || made.tokens[i].size() < 5;  // one is stopped
      };
      generator.add(std::move(g));
    }
    while (generator.step()) {
    }
  });
  return of;
}

// A rank that has loaded another file would make other texts of them all, with the same bits everywhere.
TEST(ServingPlans, WeightsThatDifferAreNoticed) {
  const std::unique_ptr<Module> m = planned(llama, 2, "fp32");
  for (const bool differ : {false, true}) {
    std::array<std::string, 2> said;
    onRanks(*m, hostTarget(1), [&](int rank, Executor &executor) {
      initializeStates(executor, 7);
      if (differ && rank == 1) {
        const StateView gain = executor.view(*m->state("ln_f.weight"), StateAccess::readAndWrite);
        static_cast<float *>(gain.data)[63] += 0x1p-20f;
      }
      try {
        requireSameWeights(executor);
      } catch (const UserError &e) {
        EXPECT_EQ(e.diagnostics[0].code, ErrorCode::RanksDiffer);
        said[size_t(rank)] = e.what();
      }
    });
    EXPECT_EQ(said[0], "");
    EXPECT_EQ(said[1].find("rank 1 has loaded other weights than rank 0") != std::string::npos, differ) << said[1];
  }
}

TEST(ServingPlans, RanksTakeTheSameTokensWithoutAWord) {
  for (const Settings &settings : {gpt2, llama}) {
    const Made one = generated(settings, 1)[0];
    ASSERT_EQ(one.tokens[2].size(), 30u);
    ASSERT_EQ(one.tokens[3].size(), 5u);
    for (const int64_t tensor : {2, 4}) {
      const std::vector<Made> of = generated(settings, tensor);
      for (const Made &made : of)
        EXPECT_TRUE(made == of[0]) << tensor << " ranks";
      EXPECT_EQ(of[0].tokens, one.tokens) << tensor << " ranks";
      // A sum of n terms, all below 2^2, is within n 2^-22. There are two blocks and the classifier, and none adds more
      // than 256 terms.
      for (size_t i = 0; i < one.scores.size(); ++i)
        for (size_t j = 0; j < one.scores[i].size(); ++j)
          EXPECT_NEAR(of[0].scores[i][j], one.scores[i][j], 3 * 256 * 0x1p-22) << i << " " << j;
    }
  }
}

}  // namespace
}  // namespace gptc
