// gptc explain --why: compares two runs, given as plans or as forecasts.
#pragma once

#include "runtime/plan/plan.h"

#include <string>
#include <vector>

namespace gptc {

/// Prints why run `a` is slower or faster than run `b`: what each computes, sends and waits for, in bytes and seconds.
/// Both are plan folders; or forecasts on a cluster, each given as a model file and settings separated by spaces:
/// "M.toml gpus=16 parallel.zero_stage=3". Keys are those of model.toml, accumulate and gpus.
void explainWhy(const std::string &a, const std::string &b, const std::string &clusterFile);

/// One line per kind of work that differs, the largest difference first, predicted at the typical rates of each plan's
/// target, so that all computers print the same.
std::vector<std::string> whySlower(const Plan &slow, const Plan &fast);

}  // namespace gptc
