// Training steps of a compiled module on random tokens, for measurements: no data, no files.
#pragma once

#include "runtime/train/session.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc {

struct Spread {
  double median = 0, least = 0, most = 0;
};
Spread spreadOf(const std::vector<double> &values);

/// A compiled module in an arena of its own, with initial values and equal tokens for all of its kind, ready to take
/// steps.
class StepRunner {
public:
  StepRunner(std::unique_ptr<Module> planned, const Target &target, const std::string &cacheDir, unsigned threads);

  /// Seconds of one step.
  double step();

  float loss = 0;  // of the last step
  Session session;

private:
  int64_t accumulate = 1, sequences = 1;
  std::vector<int32_t> x, y;
  float valid = 1;
};

}  // namespace gptc
