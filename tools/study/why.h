// gptc explain --why: two runs against each other, plans or forecasts.
#pragma once

#include "runtime/plan/plan.h"

#include <string>
#include <vector>

namespace gptc {

/// Prints why run `a` is slower than run `b`, or faster: what each computes, sends and waits for, in bytes and seconds.
/// Both are folders of plans; or forecasts on a cluster, each a model file and settings with spaces between them:
/// "M.toml gpus=16 parallel.zero_stage=3". Keys are those of model.toml, accumulate and gpus.
void explainWhy(const std::string &a, const std::string &b, const std::string &clusterFile);

/// One line per kind of work that differs, the largest difference first: predicted by the typical rates of each plan's
/// target, so that two computers say the same.
std::vector<std::string> whySlower(const Plan &slow, const Plan &fast);

}  // namespace gptc
