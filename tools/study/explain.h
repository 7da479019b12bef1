// Reports the compiler's decisions for a plan, what each costs and saves, and what the alternatives would.
#pragma once

#include "passes/decisions.h"
#include "runtime/plan/plan.h"
#include "tools/planner/variants.h"

namespace gptc {

struct Explanation {
  MachineRates rates;
  Forecast plan;
  /// Decisions recorded by passes, and those evaluated by recompiling the joint graph with one of them changed.
  std::vector<Decision> decisions;
};

/// `fp32Peak`: measured, in FLOP/s.
Explanation explain(const Plan &plan, double fp32Peak);

/// A table with a row per decision and its alternatives below.
std::string tableOf(const std::vector<Decision> &decisions);
/// formatBytes with a sign; "0" for zero.
std::string signedBytes(double bytes);

}  // namespace gptc
