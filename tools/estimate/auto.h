// Decides "auto" values of [parallel] by the forecasts that `gptc estimate` prints.
#pragma once

#include "frontends/toml_config.h"
#include "ir/kernel/schedule.h"
#include "passes/decisions.h"

#include <vector>

namespace gptc {

/// Decides and sets what `config` leaves open: parallel.zero_stage if it is "auto" or unset, parallel.tensor and
/// parallel.offload if they are "auto". An open tensor degree divides all ranks (parallel.data as read); global batch
/// and micro-batch stay. Takes the fastest strategy that fits into `bytesPerRank`, on a GPU by the memory of its plan.
/// Each returned decision says what the alternatives would have cost; empty if nothing is open.
///
/// The machines are those of `clusterFile`, and its memory limits count too. Without one, all ranks are in one node
/// with the target's typical rates, not measured ones, so that every compilation decides alike: links of 5 GB/s between
/// CPU ranks or 200 GB/s between GPUs, 25 GB/s from a GPU to its host, 200 GB/s for host memory. Throws UserError for
/// an invalid file or a cluster with the other kind of devices.
std::vector<Decision> chooseParallel(Config &config, const Target &target, int64_t bytesPerRank,
                                     const std::string &clusterFile = "");

}  // namespace gptc
