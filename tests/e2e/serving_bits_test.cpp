// A sequence has the same logits, to the bit, in any slot, beside any others, cut into any pieces, on any threads.
#include "tests/support/harness.h"

#include "ir/element.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/device/profile.h"
#include "runtime/plan/plan.h"
#include "runtime/serve/generator.h"
#include "runtime/train/session.h"
#include "tools/compiler/inference.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <bit>
#include <cstring>

using namespace e2e;
using namespace gptc;

namespace {

struct Case {
  const char *name;
  std::vector<std::string> settings;
};

struct ServingBits : ::testing::TestWithParam<Case> {
  /// The logits of each position of a sequence.
  using Logits = std::vector<std::vector<float>>;

  std::unique_ptr<Session> open(int64_t slots, unsigned threads) {
    Plan plan = loadPlan(dir);
    const ModelIdentity model = modelIdentity(*plan.planned);
    auto s = std::make_unique<Session>(servingPlan(std::move(plan), slots, cacheDir()), cacheDir(), threads);
    loadWeights(s->executor, w.path("out/checkpoints/") + w.checkpoints(w.path("out")).back(), model);
    return s;
  }
  static CachedModel::Part part(int64_t slot, const std::vector<int32_t> &tokens, int64_t begin, int64_t end) {
    static const HowToChoose greedy{};
    return {.slot = slot, .tokens = tokens, .begin = begin, .end = end, .hows = greedy};
  }
  static std::vector<float> logits(const CachedModel &m, int64_t result) { return m.logits(result).vec(); }

  /// Compiles and trains a step; the model is in `dir` and its weights in w.path("out").
  void make(const std::string &compute) {
    std::vector<std::string> settings = {"model.block_size=80",
                                         "train.global_batch_tokens=80",
                                         "train.micro_batch=1",
                                         "train.steps=1",
                                         "model.n_embd=192",
                                         "model.n_head=4",
                                         "model.dropout=0",
                                         "checkpoint.every=1",
                                         "precision.compute=" + compute};
    settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
    dir = w.compile(compute, settings);
    w.train(dir, "out");
  }

  Workplace w;
  std::string dir;
};

std::vector<int32_t> sequence(int seed, size_t n) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < n; ++i)
    tokens.push_back(int32_t(i * i * 7 + size_t(seed) * i + 3) % 64);
  return tokens;
}

TEST_P(ServingBits, AreThoseOfTheSequenceAlone) {
  constexpr int64_t length = 75;
  for (const char *compute : {"fp32", "bf16"}) {
    make(compute);
    const std::vector<int32_t> tokens = sequence(1, length);
    std::unique_ptr<Session> alone = open(1, 2);
    CachedModel one(alone->executor);
    ASSERT_EQ(one.slots(), 1);
    Logits want;
    for (int64_t at = 0; at < length;) {
      const int64_t end = one.score(0, tokens, at, {});
      for (int64_t i = at; i < end; ++i)
        want.push_back(logits(one, i - at));
      at = end;
    }
    ASSERT_NE(want[10], want[11]);
    for (int64_t i = 0; i < length; ++i) {
      one.read(part(0, tokens, i, i + 1));
      ASSERT_EQ(logits(one, 0), want[size_t(i)]) << compute << ": token " << i << " by itself";
    }

    for (const unsigned threads : {1u, 2u}) {
      std::unique_ptr<Session> many = open(5, threads);
      CachedModel model(many->executor);
      ASSERT_EQ(model.slots(), 5);
      ASSERT_EQ(model.context(), 80);
      ASSERT_EQ(model.most(), 64);
      // It stands in slot 3, in pieces, while others are read, one token or many at a time, and end and begin.
      const std::vector<std::vector<int32_t>> others = {
          sequence(2, 80), sequence(3, 80), sequence(4, 80), {}, sequence(5, 80)};
      std::vector<int64_t> done(5, 0);
      int64_t at = 0, call = 0;
      for (; at < length; ++call) {
        std::vector<CachedModel::Part> parts;
        int64_t room = model.most();
        auto add = [&](int64_t slot, const std::vector<int32_t> &all, int64_t from, int64_t count) {
          count = std::min({count, int64_t(all.size()) - from, room});
          if (count < 1)
            return from;
          parts.push_back(part(slot, all, from, from + count));
          room -= count;
          return from + count;
        };
        constexpr int64_t pieces[] = {1, 1, 7, 1, 30, 2, 1, 1, 13, 5};
        int64_t index = -1;
        for (const int64_t slot : {4, 0, 3, 2, 1}) {
          if (slot == 3) {
            index = int64_t(parts.size());
            at = add(3, tokens, at, pieces[call % 10]);
            continue;
          }
          if ((call + slot) % 3 == 0)
            continue;  // it waits
          if (done[size_t(slot)] >= 80 || (call == 6 && slot == 2))
            done[size_t(slot)] = 0;  // another sequence begins
          done[size_t(slot)] = add(slot, others[size_t(slot)], done[size_t(slot)], slot == 1 ? 11 : 1);
        }
        model.read(parts);
        ASSERT_EQ(logits(model, index), want[size_t(at) - 1])
            << compute << " up to token " << at << " in call " << call << ", " << threads << " threads";
        EXPECT_EQ(model.chosen(index), std::max_element(want[size_t(at) - 1].begin(), want[size_t(at) - 1].end()) -
                                           want[size_t(at) - 1].begin());
      }
      EXPECT_GT(call, 8);
      // Scores of a second sequence, and the first one goes on behind a prefix that it shares with another.
      int64_t end = model.score(0, tokens, 0, {});
      for (int64_t i = 0; i < end; ++i)
        ASSERT_EQ(logits(model, i), want[size_t(i)]);
      std::vector<int32_t> branch(tokens.begin(), tokens.begin() + 20);
      branch.insert(branch.end(), tokens.begin() + 22, tokens.begin() + 30);
      model.read(part(3, branch, 20, 28));
      model.read(part(3, tokens, 20, 50));
      ASSERT_EQ(logits(model, 0), want[49]);
    }
  }
}

/// Takes the logits of a function that has no result of them: those that its last product stores.
class LogitsOf : public KernelObserver {
public:
  void ran(const BoundKernel &kernel, int64_t, int64_t) override {
    const Type &type = kernel.op->result(0)->type;
    if (!llvm::StringRef(describe(*kernel.op)).starts_with("lm_head") || type.rank() < 2 || type.dim(-1) != 64)
      return;
    rows.clear();
    dtype = type.dtype;
    const int64_t stride = type.padded(-1) * int64_t(sizeOf(dtype));
    for (int64_t i = 0; i < type.rows(); ++i) {
      const char *row = static_cast<const char *>(kernel.result(0)) + i * stride;
      std::vector<float> values(64);
      for (size_t j = 0; j < values.size(); ++j) {
        if (dtype == DType::f32) {
          std::memcpy(&values[j], row + j * 4, 4);
        } else {
          uint16_t bits = 0;
          std::memcpy(&bits, row + j * 2, 2);
          values[j] = std::bit_cast<float>(uint32_t(bits) << 16);
        }
      }
      rows.push_back(values);
    }
  }
  /// Logits as they are stored.
  std::vector<float> rounded(std::vector<float> values) const {
    for (float &v : values)
      v = float(roundTo(dtype, v));
    return values;
  }
  std::vector<std::vector<float>> rows;
  DType dtype = DType::f32;
};

// Evaluation computes what sampling computes, to the bit, and so does a step of training. Logits are stored in bf16
// there.
TEST_P(ServingBits, AreThoseOfTheForwardPass) {
  for (const char *key : {"precision.weights", "precision.cache"})
    if (!GetParam().settings.empty() && llvm::StringRef(GetParam().settings.back()).starts_with(key))
      GTEST_SKIP() << "samples with other numbers";
  constexpr int64_t length = 80;
  for (const std::string compute : {"fp32", "bf16"}) {
    make(compute);
    const std::vector<int32_t> tokens = sequence(1, length);
    std::vector<int32_t> targets(tokens.begin() + 1, tokens.end());
    targets.push_back(-1);
    Plan plan = loadPlan(dir);
    const ModelIdentity model = modelIdentity(*plan.planned);
    Session session(std::move(plan), cacheDir(), 2);
    loadWeights(session.executor, w.path("out/checkpoints/") + w.checkpoints(w.path("out")).back(), model);
    LogitsOf evaluated, trained;
    session.executor.observer = &evaluated;
    session.executor.run("eval", {tokens.data(), targets.data()});
    session.executor.observer = &trained;
    const int64_t first = 0;
    const float count = length - 1;
    session.executor.run("train_step", {tokens.data(), targets.data(), &first, &count});
    session.executor.observer = nullptr;
    ASSERT_EQ(evaluated.rows.size(), size_t(length));
    ASSERT_EQ(trained.rows, evaluated.rows) << compute;

    std::unique_ptr<Session> serving = open(3, 2);
    CachedModel served(serving->executor);
    for (int64_t at = 0; at < length;) {
      const int64_t end = served.score(0, tokens, at, {});
      for (int64_t i = at; i < end; ++i)
        ASSERT_EQ(evaluated.rounded(logits(served, i - at)), evaluated.rows[size_t(i)]) << compute << ": token " << i;
      at = end;
    }
  }
}

// Tokens and log-probabilities, whatever is guessed and copied and whoever waits.
TEST_P(ServingBits, SamplesAreThoseOfEachAlone) {
  make("bf16");
  struct Sample {
    std::vector<int32_t> tokens;
    std::vector<float> scores;
    bool operator==(const Sample &) const = default;
  };
  auto generation = [&](int number, Sample &out) {
    // Some begin alike, some with a text that repeats itself.
    std::vector<int32_t> prompt = sequence(number % 2, 40);
    prompt.resize(size_t(20 + number * 3 % 17));
    for (int i = 0; number % 3 == 0 && i < 12; ++i)
      prompt.push_back(i % 3);
    Generation g{.prompt = prompt, .sample = uint64_t(number), .scores = 1};
    g.options.maxTokens = 25 + number % 4 * 10;  // some past the context
    g.options.temperature = number % 4 ? 0.5 : 0;
    g.options.topK = number % 5;
    g.options.repetitionPenalty = number == 7 ? 1.2 : 1;
    g.onToken = [&out](int32_t token, const TokenScores *scores) {
      out.tokens.push_back(token);
      out.scores.push_back(scores->logProbability);
      return out.tokens.size() < 2 || out.tokens.back() != out.tokens[out.tokens.size() - 2] || token != 5;
    };
    return g;
  };
  constexpr int count = 12;
  std::vector<Sample> want(count);
  std::unique_ptr<Session> one = open(1, 2), many = open(5, 2);
  for (int i = 0; i < count; ++i) {
    Generator generator(one->executor);
    generator.add(generation(i, want[size_t(i)]));
    while (generator.step())
      ;
  }
  EXPECT_NE(want[1], want[3]);
  for (const int64_t guesses : {0, 3})
    for (const bool copies : {false, true}) {
      std::vector<Sample> got(count);
      Generator generator(many->executor, {.guesses = guesses, .copiesPrefixes = copies});
      for (int i = 0; i < count; ++i)
        generator.add(generation(i, got[size_t(i)]));
      EXPECT_EQ(generator.unfinished(), count);
      while (generator.step())
        ;
      for (int i = 0; i < count; ++i)
        EXPECT_EQ(got[size_t(i)].tokens, want[size_t(i)].tokens) << i << ", " << guesses << " guesses";
      EXPECT_EQ(got, want) << guesses << " guesses, " << copies;
    }
  // Five prompts of 40 equal tokens: one is read, and the others copy it; or all are read, 64 tokens a call.
  for (const bool copies : {false, true}) {
    Generator generator(many->executor, {.copiesPrefixes = copies});
    for (int i = 0; i < 5; ++i)
      generator.add({.prompt = sequence(9, 40),
                     .options = {.maxTokens = 1},
                     .onToken = [](int32_t, const TokenScores *) { return true; }});
    int calls = 1;
    while (generator.step())
      ++calls;
    EXPECT_EQ(calls, copies ? 2 : 4);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ServingBits,
    ::testing::Values(
        Case{"gpt2", {}}, Case{"llama", {"model.preset=llama", "model.n_kv_head=2"}},
        Case{"bloom", {"model.preset=bloom"}},
        Case{"neox",
             {"model.position=rope", "model.rotary_dim=12", "model.parallel_residual=true",
              "model.tie_embeddings=false"}},
        Case{"gemma2",
             {"model.preset=llama", "model.n_kv_head=1", "model.norm_position=both", "model.norm_plus_one=true",
              "model.window=19", "model.layers_without_window=[1]", "model.attention_softcap=3",
              "model.logit_softcap=4", "model.activation=geglu_tanh", "model.embedding_scale=9"}},
        Case{"qwen3", {"model.preset=llama", "model.qk_norm=head", "model.head_dim=32", "model.n_kv_head=2"}},
        Case{"olmo2",
             {"model.preset=llama", "model.qk_norm=whole", "model.norm_position=output", "model.rope_scaling=yarn",
              "model.rope_factor=4", "model.rope_original_block_size=64"}},
        Case{"head", {"model.head_transform=true", "model.n_embd=256"}},
        Case{"nopos", {"model.position=none", "model.bias=false"}},
        Case{"llamaWithALowStream", {"model.preset=llama", "precision.residual=compute"}},
        Case{"gpt2Of8Bits", {"precision.weights=q8_0"}},
        Case{"llamaOf4Bits", {"model.preset=llama", "model.n_kv_head=2", "precision.weights=q4_0"}},
        Case{"llamaOfQ4K", {"model.preset=llama", "model.n_kv_head=2", "model.n_embd=256", "precision.weights=q4_k"}},
        Case{"gpt2WithACacheOf8Bits", {"model.n_embd=128", "precision.cache=q8_0"}},
        Case{"llamaWithACacheOf8Bits",
             {"model.preset=llama", "model.n_kv_head=2", "model.head_dim=64", "model.window=19",
              "precision.weights=q8_0", "precision.cache=q8_0"}}),
    [](const auto &info) { return info.param.name; });

}  // namespace
