#include "frontends/schedule_steps.h"

#include "support/words.h"

#include "llvm/ADT/StringRef.h"

#include <cmath>
#include <optional>

namespace gptc {

namespace {

constexpr int64_t mostSteps = 1'000'000'000, mostTokens = int64_t(1) << 50;

/// A part of the run, or tokens.
struct StepsText {
  std::optional<double> percent;
  int64_t tokens = 0;
};

std::optional<StepsText> parseSteps(llvm::StringRef text) {
  text = text.trim();
  if (text.consume_back("%")) {
    double percent = 0;
    if (text.trim().getAsDouble(percent) || !(percent >= 0 && percent <= 100))
      return std::nullopt;
    return StepsText{.percent = percent};
  }
  const std::optional<int64_t> n = text.consume_back("tokens") ? parseWholeTokens(text, 0, mostTokens) : std::nullopt;
  return n ? std::optional(StepsText{.tokens = *n}) : std::nullopt;
}

const std::string *textAt(ConfigReader &r, const char *key) {
  const TomlValue *v = r.get(key);
  return v ? std::get_if<std::string>(&v->value) : nullptr;
}

}  // namespace

void checkStepsText(ConfigReader &r, const char *key) {
  const std::string *text = textAt(r, key);
  if (text && !parseSteps(*text))
    r.complain(key, ErrorCode::WrongType, fmt::format("{} = \"{}\" is no number of steps", key, *text),
               "must be a number, at most 100%, or tokens", {"such as 100, \"2%\" of train.steps, or \"10M tokens\""});
}

void takeScheduleSteps(ConfigReader &r, Settings &s) {
  const int64_t tokensOfStep = s.train.globalBatchTokens;
  if (!r.good("train.steps") || !r.good("train.global_batch_tokens") || !tokensOfStep)
    return;
  const std::pair<const char *, int64_t *> keys[] = {{"optimizer.warmup_steps", &s.optimizer.warmupSteps},
                                                     {"optimizer.decay_steps", &s.optimizer.decaySteps}};
  for (const auto &[key, out] : keys) {
    const std::string *text = textAt(r, key);
    if (!text || !r.good(key) || (*out < 0 && *text == "20%"))  // a fifth, as the default
      continue;
    const StepsText of = *parseSteps(*text);
    const int64_t n = of.percent ? std::llround(*of.percent / 100 * double(s.run.steps))
                                 : (of.tokens + tokensOfStep - 1) / tokensOfStep;
    if (n > mostSteps)
      r.complain(key, ErrorCode::OutOfRange, fmt::format("{} = \"{}\" is {} steps", key, *text, n),
                 fmt::format("must be at most {}", mostSteps));
    else
      *out = n;
  }
}

}  // namespace gptc
