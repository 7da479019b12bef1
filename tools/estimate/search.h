// Enumerates strategies worth a forecast, and finds the best.
#pragma once

#include "tools/estimate/forecast.h"

#include <optional>

namespace gptc {

/// Tries what the configuration leaves open: ZeRO stages if parallel.zero_stage is "auto" or unset; tensor degrees and
/// offload if those are "auto"; checkpointing if compile.remat is "auto" and nothing fits without it. Returns one entry
/// if all is fixed, else ordered by tensor, offload and stage. `by`: from plans if possible, or by formulas for a quick
/// decision. On GPUs, if tensor or offload is open, only the best strategies are planned.
enum class ForecastBy { plans, formulas };
std::vector<Estimate> strategiesOf(Forecaster &f, int64_t gpus, ForecastBy by = ForecastBy::plans);

/// The fastest that fits; of equally fast ones the one with less memory. If none fits, the one that needs least memory.
const Estimate *bestOf(const std::vector<Estimate> &all);

/// All strategies that the cluster and the limits allow: stages, micro-batches, accumulation, tensor, pipeline,
/// checkpointing, offload. Fastest first; those that do not fit last. What model.toml fixes stays fixed.
std::vector<Estimate> searchStrategies(Forecaster &f, int64_t gpus);

/// The best runnable entry of searchStrategies; on GPUs the best whose plan fits, with the plan's memory. If no plan
/// fits, the plan with the least memory. nullopt if gptc can run none.
std::optional<Estimate> runnable(Forecaster &f, const std::vector<Estimate> &found);

/// The best runnable entries of `found` after `best`, each with another Strategy::name(), at most `most`; with the
/// formula's memory. Leaves out those that do not fit by it or, judging by the plans made so far, exceed it too far to
/// fit.
std::vector<Estimate> othersRunnable(Forecaster &f, const std::vector<Estimate> &found, const Estimate &best,
                                     size_t most);

/// Why `slow` is slower than `fast`, in bytes and seconds: one line per cause, the largest first.
std::vector<std::string> whySlower(const Estimate &slow, const Estimate &fast);

}  // namespace gptc
