// What the compiler decided for a plan, what each decision costs and saves, and what the alternatives would.
#pragma once

#include "passes/decisions.h"
#include "runtime/plan/plan.h"
#include "tools/planner/variants.h"

namespace gptc {

struct Explanation {
  MachineRates rates;
  Forecast plan;
  /// Those recorded by passes, and those found by compiling the joint graph once more with one of them taken otherwise.
  std::vector<Decision> decisions;
};

/// `fp32Peak` in FLOP/s, as measured.
Explanation explain(const Plan &plan, double fp32Peak);

/// A table for people: one row per decision, alternatives below it.
std::string tableOf(const std::vector<Decision> &decisions);
/// formatBytes with a sign, "0" where there are none.
std::string signedBytes(double bytes);

}  // namespace gptc
