// gptc explain --why: two forecasts against each other.
#pragma once

#include <string>
#include <vector>

namespace gptc {

/// Prints why run `a` is slower than run `b` on a cluster, or faster: what each sends, computes and waits for, in bytes
/// and seconds. A run is a model file and settings with spaces between them: "M.toml gpus=16 parallel.zero_stage=3".
/// Keys are those of model.toml, accumulate and gpus.
void explainWhy(const std::string &a, const std::string &b, const std::string &clusterFile);

}  // namespace gptc
