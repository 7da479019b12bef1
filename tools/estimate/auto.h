// "auto" values of [parallel], decided by the same forecasts that `gptc estimate` prints.
#pragma once

#include "frontends/toml_config.h"
#include "ir/schedule.h"
#include "passes/decisions.h"

#include <optional>

namespace gptc {

/// Where parallel.zero_stage is "auto" and several ranks share the batch: sets it to the fastest stage whose forecast
/// fits into `bytesPerRank`, and says what the others would have taken. The target's typical rates are used, not
/// measured ones, so that two compilations decide alike.
std::optional<Decision> chooseZeroStage(Config &config, const Target &target, int64_t bytesPerRank);

}  // namespace gptc
