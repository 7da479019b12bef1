// Fits the scalars of a cluster file that no data sheet has to what was observed there, and says which observations
// contradict physics, each other, or all others.
#pragma once

#include "tools/estimate/forecast.h"

#include <functional>
#include <string>
#include <vector>

namespace gptc {

enum class Scalar { slowdown, effective, stepOverhead };
const char *nameOf(Scalar s);  // "software.slowdown", as in the file

struct ObservedRow {
  const Observation *observation = nullptr;
  double seen = 0, predicted = 0;  // seconds per step; seen = 0: no speed was observed
  double error = 0;                // predicted / seen - 1
  double leftOut = 0;  // the same, fitted without this row; NaN where it is not fitted, or the others are too few
  bool fitted = false;
  bool impossible = false;  // breaks physics, and is not fitted
  Estimate estimate;
  /// Each says what cannot be and what would have to be true. A row with any that is about physics is not fitted.
  std::vector<std::string> contradictions;
};

struct Calibration {
  ClusterConfig cluster;  // with the scalars fitted
  std::vector<Scalar> fitted;
  std::vector<ObservedRow> rows;
  std::vector<std::string> notes;  // why a scalar was left alone
};

/// `which`: the scalars to fit; empty: those that the file leaves open or that were fitted before. Throws UserError
/// where no observation has a speed, and what reading the models throws.
Calibration calibrate(const ClusterConfig &cluster, std::vector<Scalar> which = {});

}  // namespace gptc
