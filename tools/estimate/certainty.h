// How sure a forecast is: the interval that a cluster's fit leaves, or a default; and what no log has tried.
#pragma once

#include "tools/estimate/forecast.h"

#include <string>
#include <vector>

namespace gptc {

/// The interval of `e`, which `f` has forecast. If software.slowdown has an interval, that of the fit: each fitted
/// scalar goes to either end of its own, and the changes of the step's logarithm add up as if they were independent.
/// Else, and for times by code, a default: how far forecasts with nothing fitted were from measurements
/// (docs/lab/forecasts.md).
Certainty certaintyOf(Forecaster &f, const Estimate &e);

/// What of `s` no row with a speed in the cluster's log has: "several nodes", "tensor over nodes", ...
std::vector<std::string> neverSeen(const Strategy &s, const ClusterConfig &cluster);

/// Sets `sure` and `neverSeen` of the possible ones among `all`, from index `first` on.
void judge(Forecaster &f, std::vector<Estimate> &all, size_t first = 0);

/// Where an interval comes from, as a sentence.
std::string sourceOf(const Certainty &sure, const ClusterConfig &cluster);

}  // namespace gptc
