// Presents forecasts as SVG pictures and sentences.
#pragma once

#include "tools/estimate/forecast.h"

namespace gptc {

/// The largest buffers, largest first; leaves out those below a thousandth of the total.
std::vector<std::pair<std::string, double>> largest(const Buffers &buffers, size_t most);

/// Days for `tokens` by number of GPUs, both axes logarithmic: a line per strategy with its 90% intervals, crosses
/// where memory does not suffice, circles for the cluster's observations. With one number of GPUs: a bar per strategy.
std::string daysPicture(const std::vector<Estimate> &all, const RunTokens &tokens, const ClusterConfig &cluster);
/// A waterfall of one step: seconds by cause.
std::string stepPicture(const Estimate &e);
/// Memory of a device through one forward and backward pass, on top of its constant part, against its capacity; beside
/// it the largest buffers at the peak. `curve`: memoryCurve of the micro-batch.
std::string memoryPicture(const Estimate &e, const std::vector<double> &curve, const ClusterConfig &cluster);

/// If a network delivers far less than its data sheet's bandwidth and that costs days: how many, and what to check.
std::vector<std::string> networkAdvice(const std::vector<Estimate> &all, const ClusterConfig &cluster, double tokens);

}  // namespace gptc
