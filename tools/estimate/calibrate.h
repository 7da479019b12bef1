// Fits the scalars of a cluster file that no data sheet gives to its observations, and reports observations that
// contradict physics, each other, or all others.
#pragma once

#include "tools/estimate/forecast.h"

#include <functional>
#include <string>
#include <vector>

namespace gptc {

enum class Scalar { slowdown, effective, stepOverhead };
const char *nameOf(Scalar s);  // the key in the file: "software.slowdown"

struct ObservedRow {
  const Observation *observation = nullptr;
  double seen = 0, predicted = 0;  // seconds per step; seen = 0: no speed observed
  double error = 0;                // predicted / seen - 1
  double leftOut = 0;  // error after fitting without this row; NaN if the row is not fitted or too few rows remain
  bool fitted = false;
  bool impossible = false;  // contradicts physics, so it is not fitted
  bool setAside = false;    // contradicts other rows, which agree without it, so it is not fitted
  Estimate estimate;
  /// Each entry says what is impossible, or doubtful, and what would have to be true.
  std::vector<std::string> contradictions;
};

struct Calibration {
  ClusterConfig cluster;  // with fitted scalars, and how far the rows fitted scatter about them, if they say
  std::vector<Scalar> fitted;
  std::vector<ObservedRow> rows;
  std::vector<std::string> notes;  // why a scalar was not fitted, or has no interval
};

/// Fits `which`; empty: the scalars that the file leaves open or that were fitted before. Throws UserError if no
/// observation has a speed, and what reading the models throws.
Calibration calibrate(const ClusterConfig &cluster, const std::vector<Scalar> &which = {});

}  // namespace gptc
