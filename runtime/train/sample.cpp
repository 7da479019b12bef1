#include "runtime/train/sample.h"

#include "ir/facts.h"
#include "ir/random.h"
#include "runtime/device/executor.h"
#include "runtime/plan/plan.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gptc {
namespace {

constexpr uint32_t kSampleStream = 0xDA7A0003;

/// The KV cache of a plan, filled from position 0.
class Context {
public:
  explicit Context(Executor &executor) : executor(executor) {
    if (!executor.has("prefill") || !executor.has("decode"))
      throw UserError(ErrorCode::PlanDamaged, "the plan cannot sample: it has no @prefill and @decode",
                      "compile it again with `gptc compile`");
    executor.prepare({"prefill", "decode"});
    piece = executor.argType("prefill", 0).dim(1);
    limit = fact<&ModelFacts::blockSize>(executor.planned());
  }

  /// Logits after `tokens`, which occupy the cache from position 0.
  llvm::ArrayRef<float> read(llvm::ArrayRef<int32_t> tokens) {
    const int64_t n = tokens.size();
    std::vector<int32_t> part(piece, 0);
    for (int64_t pos = 0; pos < n; pos += piece) {
      // The last piece is moved back to end at n: writing a token to the cache twice leaves the same values.
      const int64_t start = std::min(pos, std::max<int64_t>(0, n - piece)), count = std::min(piece, n - start),
                    last = count - 1;
      std::copy_n(tokens.begin() + start, count, part.begin());
      // A one-token prefill has no operand for the last position.
      std::vector<const void *> args = {part.data(), &start};
      if (piece > 1)
        args.push_back(&last);
      executor.run("prefill", args);
    }
    return logits("prefill");
  }

  llvm::ArrayRef<float> append(int32_t token, int64_t pos) {
    executor.run("decode", {&token, &pos});
    return logits("decode");
  }

  int64_t limit = 0;

private:
  llvm::ArrayRef<float> logits(llvm::StringRef function) const {
    return {static_cast<const float *>(executor.result(function, 0)),
            size_t(fact<&ModelFacts::vocabSize>(executor.planned()))};
  }
  Executor &executor;
  int64_t piece = 0;
};

}  // namespace

void requireGenerator(const Module &planned) {
  if (maskToken(planned) >= 0)
    throw UserError(ErrorCode::Contradiction, "an encoder cannot continue a text: it sees what comes after, too",
                    "`gptrun eval` measures how well it fills gaps; to sample, train with model.causal = true");
}

void requireKnownPrompt(llvm::ArrayRef<int32_t> prompt, const Module &planned) {
  const int64_t vocab = fact<&ModelFacts::vocabSize>(planned);
  for (int32_t t : prompt)
    if (t < 0 || t >= vocab)
      throw UserError(ErrorCode::TokenOutOfRange, fmt::format("the prompt has token {}, the vocabulary {}", t, vocab),
                      "use the tokenizer that the model was trained with");
}

std::string tokensWithoutText(const Module &planned, int64_t tokens) {
  const int64_t vocab = fact<&ModelFacts::vocabSize>(planned);
  return tokens >= vocab ? ""
                         : fmt::format("the model has {} tokens and the tokenizer {}; samples never hold the other {}",
                                       vocab, tokens, vocab - tokens);
}

// With some 50,000 tokens and a few milliseconds per choice, only what top-k and top-p need is sorted.
int32_t chooseToken(llvm::ArrayRef<float> logits, const SampleOptions &o, double u) {
  if (o.tokens > 0 && size_t(o.tokens) < logits.size())
    logits = logits.take_front(o.tokens);
  const float *most = std::max_element(logits.begin(), logits.end());  // the first of equals
  if (o.temperature <= 0)
    return int32_t(most - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  size_t sorted = 0;
  auto sortUpTo = [&](size_t n) {
    auto better = [&](int32_t a, int32_t b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); };
    const auto from = order.begin() + sorted, to = order.begin() + std::min(n, order.size());
    if (to != order.end())
      std::nth_element(from, to, order.end(), better);
    std::sort(from, to, better);
    sorted = to - order.begin();
  };
  if (o.topK > 0 && size_t(o.topK) < order.size()) {
    sortUpTo(o.topK);
    order.resize(o.topK);
  }
  std::vector<double> weight(order.size());
  auto weigh = [&](size_t i) { return weight[i] = std::exp((double(logits[order[i]]) - *most) / o.temperature); };
  double total = 0;
  for (size_t i = 0; i < order.size(); ++i)
    total += weigh(i);
  if (o.topP < 1) {
    double sum = 0;
    size_t n = 0;
    while (n < order.size() && (n == 0 || sum < o.topP * total)) {
      if (n == sorted)
        sortUpTo(std::max<size_t>(64, 4 * sorted));
      sum += weigh(n++);
    }
    order.resize(n);
    total = sum;
  }
  double x = u * total;
  for (size_t i = 0; i + 1 < order.size(); ++i)
    if ((x -= weight[i]) < 0)
      return order[i];
  return order.back();
}

void sampleTokens(Executor &executor, llvm::ArrayRef<int32_t> prompt, const SampleOptions &options,
                  const std::function<bool(int32_t)> &emit) {
  GPTC_CHECK(!prompt.empty(), "sampling needs a token to start from");
  Context context(executor);
  requireKnownPrompt(prompt, executor.planned());
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  auto keepLast = [&](int64_t n) {
    if (int64_t(tokens.size()) > n)
      tokens.erase(tokens.begin(), tokens.end() - n);
  };
  keepLast(context.limit);
  const RandomKey key = randomKey(options.seed, 0, kSampleStream, 0);
  llvm::ArrayRef<float> logits = context.read(tokens);
  for (int64_t i = 0; i < options.maxTokens; ++i) {
    int32_t token = chooseToken(logits, options, randomUniform(key, i));
    if (!emit(token) || i + 1 == options.maxTokens)
      return;
    tokens.push_back(token);
    if (int64_t(tokens.size()) > context.limit) {
      keepLast(std::max<int64_t>(1, context.limit / 2));
      logits = context.read(tokens);
    } else {
      logits = context.append(token, tokens.size() - 1);
    }
  }
}

}  // namespace gptc
