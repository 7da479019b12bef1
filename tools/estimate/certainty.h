// How sure a forecast is: the interval that a cluster's fit leaves, or a default; and what no log has tried.
#pragma once

#include "tools/estimate/forecast.h"

#include <set>
#include <string>
#include <vector>

namespace gptc {

/// The interval of `e`, which `f` has forecast. If software.slowdown has an interval, that of the fit: each fitted
/// scalar goes to either end of its own, and the changes of the step's logarithm add up as if they were independent,
/// with software.scatter among them. Without that key the interval is that of the mean of runs. Without an interval of
/// software.slowdown, and for times by code, a default: how far forecasts with nothing fitted were from measurements
/// (docs/lab/forecasts.md).
Certainty certaintyOf(Forecaster &f, const Estimate &e);

/// Factors on the days of a run of `tokens`, of whose step `ofStep` is the certainty: both doubts add up in the same
/// way.
Certainty certaintyOfDays(const Certainty &ofStep, const RunTokens &tokens);

/// Sets `sure` of the possible ones among `all`, from index `first` on.
void judge(Forecaster &f, std::vector<Estimate> &all, size_t first = 0);

/// What the rows with a speed of a cluster's log have tried.
struct Tried {
  bool nodes = false, tensor = false, tensorOverNodes = false, pipeline = false, offload = false;
  std::set<std::string> compressions;
};
/// Reads the rows' models. Of a row whose model cannot be read only the GPUs and stages count.
Tried triedIn(const ClusterConfig &cluster);

/// What of `s` has not been tried: "several nodes", "tensor over nodes", ... `perNode`: devices of a node.
std::vector<std::string> neverSeen(const Strategy &s, const Tried &tried, int64_t perNode);

/// Sets `neverSeen` of the possible ones among `all`.
void markNeverSeen(std::vector<Estimate> &all, const ClusterConfig &cluster);

/// Where an interval comes from, as a sentence.
std::string sourceOf(const Certainty &sure, const ClusterConfig &cluster);

}  // namespace gptc
