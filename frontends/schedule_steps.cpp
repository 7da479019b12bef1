#include "frontends/schedule_steps.h"

#include "support/words.h"

#include "llvm/ADT/StringRef.h"

#include <cmath>
#include <optional>

namespace gptc {

namespace {

constexpr int64_t mostSteps = 1'000'000'000, mostTokens = int64_t(1) << 50;

/// Nothing if the text is no part of a run and no number of tokens, or too many.
std::optional<int64_t> stepsOf(llvm::StringRef text, int64_t steps, int64_t tokensOfStep) {
  text = text.trim();
  if (text.consume_back("%")) {
    double percent = 0;
    if (text.trim().getAsDouble(percent) || !(percent >= 0 && percent <= 100))
      return std::nullopt;
    return std::llround(percent / 100 * double(steps));
  }
  if (!text.consume_back("tokens"))
    return std::nullopt;
  const std::optional<int64_t> tokens = parseWholeTokens(text, 0, mostTokens);
  if (!tokens)
    return std::nullopt;
  const int64_t n = (*tokens + tokensOfStep - 1) / tokensOfStep;
  return n <= mostSteps ? std::optional(n) : std::nullopt;
}

}  // namespace

void takeScheduleSteps(ConfigReader &r, Settings &s) {
  if (!r.good("train.steps") || !r.good("train.global_batch_tokens") || !s.train.globalBatchTokens)
    return;
  const std::pair<const char *, int64_t *> keys[] = {{"optimizer.warmup_steps", &s.optimizer.warmupSteps},
                                                     {"optimizer.decay_steps", &s.optimizer.decaySteps}};
  for (const auto &[key, out] : keys) {
    const TomlValue *v = r.get(key);
    const auto *text = v ? std::get_if<std::string>(&v->value) : nullptr;
    if (!text || (*out < 0 && *text == "20%"))  // a fifth, as the default
      continue;
    if (const std::optional<int64_t> n = stepsOf(*text, s.run.steps, s.train.globalBatchTokens))
      *out = *n;
    else
      r.complain(key, ErrorCode::WrongType, fmt::format("{} = \"{}\" is no number of steps", key, *text),
                 fmt::format("must be at most {}, or 100%", mostSteps),
                 {"such as 100, \"2%\" of train.steps, or \"10M tokens\""});
  }
}

}  // namespace gptc
