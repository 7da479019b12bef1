#include "runtime/serve/sample.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "runtime/plan/plan.h"
#include "runtime/serve/generator.h"
#include "support/diagnostics.h"

#include <cmath>
#include <limits>

namespace gptc {

void requireGenerator(const Module &planned) {
  if (fact<&ModelFacts::labels>(planned))
    throw UserError(ErrorCode::Contradiction, "a classifier of texts cannot continue one",
                    "`gptrun eval` measures how well it tells labels, `gptrun classify` tells them");
  if (maskToken(planned) >= 0)
    throw UserError(ErrorCode::Contradiction, "an encoder cannot continue a text: it sees what comes after, too",
                    "`gptrun eval` measures how well it fills gaps, `gptrun embed` makes vectors of texts; to sample, "
                    "train with model.causal = true");
}

void requireKnownPrompt(llvm::ArrayRef<int32_t> prompt, const Module &planned) {
  const int64_t vocab = fact<&ModelFacts::vocabSize>(planned);
  for (int32_t t : prompt)
    if (t < 0 || t >= vocab)
      throw UserError(ErrorCode::TokenOutOfRange, fmt::format("the text has token {}, the vocabulary {}", t, vocab),
                      "use the tokenizer that the model was trained with");
}

std::string tokensWithoutText(const Module &planned, int64_t tokens) {
  const int64_t vocab = fact<&ModelFacts::vocabSize>(planned);
  return tokens >= vocab ? ""
                         : fmt::format("the model has {} tokens and the tokenizer {}; samples never hold the other {}",
                                       vocab, tokens, vocab - tokens);
}

HowToChoose howToChoose(const SampleOptions &o, double u) {
  HowToChoose how;
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

bool choosesOnHost(const SampleOptions &o) { return o.repetitionPenalty != 1 || (o.minP > 0 && o.temperature > 0); }

int32_t chooseOnHost(llvm::ArrayRef<float> logits, const HowToChoose &how, const SampleOptions &o,
                     const llvm::BitVector &seen) {
  constexpr float never = -std::numeric_limits<float>::infinity();
  std::vector<float> scores(logits.begin(), logits.end());
  if (o.repetitionPenalty != 1)
    for (unsigned token : seen.set_bits()) {
      float &score = scores[token];
      score = float(score > 0 ? score / o.repetitionPenalty : score * o.repetitionPenalty);
    }
  if (o.minP > 0 && o.temperature > 0) {
    const llvm::ArrayRef<float> choice =
        llvm::ArrayRef<float>(scores).take_front(o.tokens > 0 ? size_t(o.tokens) : scores.size());
    float most = never;
    for (float score : choice)
      most = score > most ? score : most;
    const double least = most + o.temperature * std::log(o.minP);
    for (float &score : scores)
      if (!(score >= least))
        score = never;
  }
  return chooseToken(scores, how);
}

void sampleTokens(Executor &executor, llvm::ArrayRef<int32_t> prompt, const SampleOptions &options,
                  const std::function<bool(int32_t)> &emit) {
  Generator generator(executor);
  generator.add({.prompt = prompt.vec(), .options = options, .onToken = [&](int32_t token, const TokenScores *) {
                   return emit(token);
                 }});
  while (generator.step())
    ;
}

}  // namespace gptc
