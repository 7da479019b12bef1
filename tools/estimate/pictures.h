// What forecasts look like: pictures as SVG, and sentences.
#pragma once

#include "tools/estimate/forecast.h"

namespace gptc {

/// The largest buffers, largest first; those of less than a thousandth of all are left out.
std::vector<std::pair<std::string, double>> largest(const Buffers &buffers, size_t most);

/// Days for `tokens` against the number of GPUs, both logarithmic: a line per strategy, crosses where memory does not
/// suffice, and the cluster's observations of the same model as points.
std::string daysPicture(const std::vector<Estimate> &all, double tokens, const ClusterConfig &cluster);
/// One step as a waterfall: seconds by cause, one after the other.
std::string stepPicture(const Estimate &e);
/// Bytes of a device through one forward and backward pass, on top of what is always there, against what it has; beside
/// it the largest buffers at the peak. `curve`: memoryCurve of the micro-batch.
std::string memoryPicture(const Estimate &e, const std::vector<double> &curve, const ClusterConfig &cluster);

/// Where a network delivers far less than its data sheet says and that costs days: how many, and what to check.
std::vector<std::string> networkAdvice(const std::vector<Estimate> &all, const ClusterConfig &cluster, double tokens);

}  // namespace gptc
