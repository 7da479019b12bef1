#include "runtime/train/sample.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "ir/random.h"
#include "runtime/device/executor.h"
#include "runtime/plan/plan.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <cmath>

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

  /// The token after `tokens`, which occupy the cache from position 0.
  int32_t read(llvm::ArrayRef<int32_t> tokens, llvm::ArrayRef<float> how) {
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
      run("prefill", std::move(args), how);
    }
    return chosen("prefill", how);
  }

  int32_t append(int32_t token, int64_t pos, llvm::ArrayRef<float> how) {
    run("decode", {&token, &pos}, how);
    return chosen("decode", how);
  }

  int64_t limit = 0;

private:
  bool chooses(llvm::StringRef function) const { return choosesTokens(*executor.planned().function(function)); }

  void run(llvm::StringRef function, std::vector<const void *> args, llvm::ArrayRef<float> how) {
    if (chooses(function))
      args.push_back(how.data());
    executor.run(function, args);
  }

  int32_t chosen(llvm::StringRef function, llvm::ArrayRef<float> how) {
    if (chooses(function))
      return *static_cast<const int32_t *>(executor.result(function, 1));
    return chooseToken({static_cast<const float *>(executor.result(function, 0)),
                        size_t(fact<&ModelFacts::vocabSize>(executor.planned()))},
                       how);
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

std::array<float, choose_token::columns> howToChoose(const SampleOptions &o, double u) {
  std::array<float, choose_token::columns> how;
  how[choose_token::temperature] = float(o.temperature);
  how[choose_token::topK] = float(o.topK);
  how[choose_token::topP] = float(o.topP);
  how[choose_token::tokens] = float(o.tokens);
  how[choose_token::position] = float(std::floor(u * 0x1p24) * 0x1p-24);  // downwards, as it must stay below 1
  return how;
}

int32_t chooseToken(llvm::ArrayRef<float> logits, llvm::ArrayRef<float> how) {
  Module m;
  Function *f = m.addFunction("f");
  Builder b(f->body);
  auto argument = [&](llvm::ArrayRef<float> values) {
    const Type type(DType::f32, {1, int64_t(values.size())});
    return std::pair(f->body.addArg(type), Tensor(type, {values.begin(), values.end()}));
  };
  const auto [scores, scoresOf] = argument(logits);
  const auto [numbers, numbersOf] = argument(how);
  b.ret({b.value(OpKind::choose_token, {scores, numbers})});
  StateMap none;
  return int32_t(interpret(*f, std::array{scoresOf, numbersOf}, none)[0].data[0]);
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
  if (options.maxTokens < 1)
    return;
  const RandomKey key = randomKey(options.seed, 0, kSampleStream, 0);
  auto how = [&](int64_t i) { return howToChoose(options, randomUniform(key, i)); };
  int32_t token = context.read(tokens, how(0));
  for (int64_t i = 1; emit(token) && i < options.maxTokens; ++i) {
    tokens.push_back(token);
    if (int64_t(tokens.size()) > context.limit) {
      keepLast(std::max<int64_t>(1, context.limit / 2));
      token = context.read(tokens, how(i));
    } else {
      token = context.append(token, tokens.size() - 1, how(i));
    }
  }
}

}  // namespace gptc
