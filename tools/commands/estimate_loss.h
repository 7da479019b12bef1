// What `gptc estimate` says of losses: --loss, --curve, and of the batch.
#pragma once

#include "frontends/toml_config.h"
#include "support/json.h"
#include "tools/estimate/forecast.h"
#include "tools/estimate/loss_curve.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct LossRequest {
  double loss = 0;    // to be reached; 0: not asked for
  std::string curve;  // log.jsonl of a run; "": the law
};

struct LossForecast {
  RunTokens tokens = 0;         // as given, or as the requested loss takes
  double goal = 0;              // the requested loss; 0: none
  std::optional<double> byLaw;  // nats per token after `tokens`; none for encoders
  std::optional<LossCurve> curve;
  std::optional<LossCurve::Span> byCurve;  // after `tokens`
  std::optional<double> critical;          // batch in tokens at the expected loss
  bool isBeyond(const Estimate &e) const { return critical && e.tokensPerStep > *critical; }
};

/// `tokens`: of the run if no loss is requested. Throws UserErrors: OutOfRange for a loss that is not reached,
/// Contradiction for an encoder's by the law, and what readCurve and LossCurve throw.
LossForecast forecastLoss(const Config &config, const LossRequest &request, double tokens);

/// Paragraphs: the expected loss; and the critical batch, if a batch of `all` that fits is beyond it. `best`: whose
/// days are shown.
std::vector<std::string> notesOf(const LossForecast &loss, const std::vector<Estimate> &all, const Estimate &best);

/// Member "loss" of a forecast.
nlohmann::ordered_json jsonOf(const LossForecast &loss, const Estimate &e);

}  // namespace gptc
