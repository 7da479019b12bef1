#include "tools/commands/estimate_loss.h"

#include "support/diagnostics.h"
#include "tools/estimate/certainty.h"
#include "tools/estimate/loss.h"
#include "tools/estimate/workload.h"

#include <fmt/format.h>

#include <cmath>

namespace gptc {

using json = nlohmann::ordered_json;

namespace {

constexpr const char *law =
    "the law of Hoffmann et al. 2022 with the constants of Besiroglu et al. 2024, for their data "
    "and tokenizer";

double tokensByLawOrError(const Config &config, double loss) {
  const double parameters = parameterCount(config), least = leastLossByLaw(parameters);
  if (!config.model.causal)
    throw UserError(ErrorCode::Contradiction,
                    "the law of losses is of models that predict the next token, not of encoders",
                    "continue a run's own log: --curve OUT_DIR/log.jsonl");
  const std::optional<double> tokens = tokensByLaw(parameters, loss);
  if (!tokens)
    throw UserError(
        ErrorCode::OutOfRange,
        fmt::format("no run with {:.4g} parameters reaches a loss of {:.4g}: by {} it stays above {:.3g}, with "
                    "any number of tokens",
                    parameters, loss, law, least),
        "ask for a higher loss, or take a larger model");
  return *tokens;
}

/// "3.4e+09", or that no run is long enough.
std::string tokensOrNever(double tokens) {
  return std::isfinite(tokens) ? fmt::format("{:.3g}", tokens) : "more than 1e+18";
}

std::string daysOrNever(double days) { return std::isfinite(days) ? formatDays(days) : "more"; }

std::string noteOfCurve(const LossForecast &loss, const Estimate &best) {
  const LossCurve &c = *loss.curve;
  const LossCurve::Span &s = *loss.byCurve;
  std::string text =
      fmt::format("curve: {:.4g} nats per token ({:.4g} to {:.4g} with 90% confidence) after {:.3g} tokens, "
                  "{:.2g} x those of {}: {}",
                  s.value, s.low, s.high, loss.tokens.value, loss.tokens / c.last(), c.file(), c.formula());
  const RunTokens &t = loss.tokens;
  if (t.isGiven)
    return text;
  text += fmt::format(". Loss {:.4g} takes {} to {} tokens with 90% confidence", loss.goal, tokensOrNever(t.low),
                      tokensOrNever(t.high));
  if (!best.fits())
    return text;
  const Certainty sure = certaintyOfDays(best.sure, t);
  return text + fmt::format(", with {} GPUs and the doubt of their speed {} to {} days", best.strategy.gpus,
                            daysOrNever(sure.low * best.days(t)), daysOrNever(sure.high * best.days(t)));
}

}  // namespace

LossForecast forecastLoss(const Config &config, const LossRequest &request, double tokens) {
  LossForecast l;
  l.goal = request.loss;
  l.tokens = tokens;
  if (!request.curve.empty()) {
    l.curve.emplace(request.curve, readCurve(request.curve));
    if (l.goal > 0) {
      const LossCurve::Span t = l.curve->tokensTo(l.goal);
      l.tokens = RunTokens(t.value, t.low, t.high);
    }
    if (l.tokens < 0.1 * l.curve->last())
      throw UserError(ErrorCode::OutOfRange,
                      fmt::format("{:.3g} tokens are before the curve of {}, which begins at a tenth of its {:.3g}",
                                  l.tokens.value, request.curve, l.curve->last()),
                      "ask for more --tokens");
    l.byCurve = l.curve->lossAt(l.tokens);
  } else if (l.goal > 0) {
    l.tokens = tokensByLawOrError(config, l.goal);
  }
  if (config.model.causal)
    l.byLaw = lossByLaw(parameterCount(config), l.tokens);
  if (l.byCurve || l.byLaw)
    l.critical = criticalBatch(l.byCurve ? l.byCurve->value : *l.byLaw);
  return l;
}

std::vector<std::string> notesOf(const LossForecast &loss, const std::vector<Estimate> &all, const Estimate &best) {
  std::vector<std::string> notes;
  if (loss.byLaw)
    notes.push_back(fmt::format("loss: {:.3g} nats per token expected after {:.3g} tokens, by {}", *loss.byLaw,
                                loss.tokens.value, law));
  if (loss.curve)
    notes.push_back(noteOfCurve(loss, best));
  const Estimate *largest = nullptr;
  for (const Estimate &e : all)
    if (e.fits() && loss.isBeyond(e) && (!largest || e.tokensPerStep > largest->tokensPerStep))
      largest = &e;
  if (largest)
    notes.push_back(fmt::format("batch: {:.3g} tokens a step ({} GPUs, {}) are beyond the critical batch of {:.3g} at "
                                "that loss. The same loss then "
                                "takes 1 + batch / critical = {:.2g} x the tokens of small batches, which is not "
                                "counted here. Critical: 2e8 / loss "
                                "^ (1 / 0.21), McCandlish et al. 2018 with the constants of Kaplan et al. 2020",
                                largest->tokensPerStep, largest->strategy.gpus, largest->strategy.name(),
                                *loss.critical, 1 + largest->tokensPerStep / *loss.critical));
  return notes;
}

json jsonOf(const LossForecast &loss, const Estimate &e) {
  json j = json::object();
  if (loss.goal > 0)
    j["goal"] = loss.goal;
  if (loss.byLaw)
    j["by_law"] = *loss.byLaw;
  if (loss.byCurve)
    j["by_curve"] = {{"loss", loss.byCurve->value},
                     {"interval", {loss.byCurve->low, loss.byCurve->high}},
                     {"formula", loss.curve->formula()},
                     {"last_tokens", loss.curve->last()}};
  if (!loss.tokens.isGiven)
    j["by_curve"]["tokens_interval"] = {finiteOrNull<json>(loss.tokens.low), finiteOrNull<json>(loss.tokens.high)};
  if (loss.critical) {
    j["critical_batch_tokens"] = *loss.critical;
    j["beyond_critical_batch"] = loss.isBeyond(e);
  }
  return j;
}

}  // namespace gptc
