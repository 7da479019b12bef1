// Strategies worth a forecast, and the best of them.
#pragma once

#include "tools/estimate/forecast.h"

#include <optional>

namespace gptc {

/// What the configuration leaves open is tried: ZeRO stages where parallel.zero_stage is "auto" or not written, ranks
/// along "tensor" and offload where those are "auto", checkpointing where compile.remat is "auto" and nothing fits
/// without. One entry where all is fixed. In the order of tensor, offload and the stages. `by`: from plans where that
/// can be, or by formulas, where a decision has to be taken soon. On GPUs plans are made for what is best alone where
/// tensor or offload is open.
enum class ForecastBy { plans, formulas };
std::vector<Estimate> strategiesOf(Forecaster &f, int64_t gpus, ForecastBy by = ForecastBy::plans);

/// The fastest that fits; of equal ones the one with less memory. Where none fits the one that needs the least memory.
const Estimate *bestOf(const std::vector<Estimate> &all);

/// Everything that the cluster and the limits allow: stages, micro-batches, accumulation, tensor and pipeline, with and
/// without checkpointing and offload; fastest first, those that do not fit last. What model.toml fixes stays fixed.
std::vector<Estimate> searchStrategies(Forecaster &f, int64_t gpus);

/// The best of searchStrategies that can be run, on GPUs with the memory of its plan, which fits; else, of those that
/// were planned, the one with the least. nullopt where gptc runs none.
std::optional<Estimate> runnable(Forecaster &f, const std::vector<Estimate> &found);

/// Why `slow` is slower than `fast`, in bytes and seconds: one line per cause, the largest first.
std::vector<std::string> whySlower(const Estimate &slow, const Estimate &fast);

}  // namespace gptc
