// "auto" values of [parallel], decided by the same forecasts that `gptc estimate` prints.
#pragma once

#include "frontends/toml_config.h"
#include "ir/kernel/schedule.h"
#include "passes/decisions.h"

#include <vector>

namespace gptc {

/// Decides what `config` leaves open and sets it: parallel.zero_stage where it is "auto" or not written, and
/// parallel.tensor and parallel.offload where they are "auto". Of "tensor" all ranks are shared out, parallel.data of
/// them as it was read: the global batch and the micro-batch stay. The fastest that fits into `bytesPerRank` is taken,
/// on a GPU by the memory of its plan; each decision says what the others would have taken. Empty where nothing is
/// open.
///
/// The machines are those of `clusterFile`, whose memory counts too. Without one all ranks are neighbours in one node,
/// with the target's typical rates rather than measured ones, so that two compilations decide alike: links of 5 GB/s
/// between CPU ranks, of GPUs 200 GB/s, 25 GB/s from a GPU to its host, whose memory has 200 GB/s. Throws UserError for
/// a cluster of the other kind of devices, or a file that is none.
std::vector<Decision> chooseParallel(Config &config, const Target &target, int64_t bytesPerRank,
                                     const std::string &clusterFile = "");

}  // namespace gptc
