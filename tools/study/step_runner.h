// Runs training steps of a compiled module on random tokens, for measurements without data or files.
#pragma once

#include "runtime/train/sequence_batch.h"
#include "runtime/train/session.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct Spread {
  double median = 0, least = 0, most = 0;
};
Spread spreadOf(const std::vector<double> &values);

/// A compiled module in its own arena, ready for steps, with initial values. Modules with equal shapes get equal
/// tokens.
class StepRunner {
public:
  StepRunner(std::unique_ptr<Module> planned, const Target &target, const std::string &cacheDir, unsigned threads);

  /// Runs a step and returns its seconds.
  double step();

  float loss = 0;  // of the last step
  Session session;

private:
  void fillBatch(const Function &step);

  int64_t accumulate = 1, sequences = 1;
  std::optional<SequenceBatch> batch;
  float valid = 1;
};

}  // namespace gptc
