// Measures the value of each optimisation: training steps without it against steps with all, in one process,
// alternately, with the same recipes.
#pragma once

#include "passes/analysis/cost.h"
#include "tools/study/step_runner.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gptc {

struct Ablation {
  std::string name;                             // "decomposed attention"
  std::string skipped;                          // why it was not measured; "" if it was
  Spread ms;                                    // per step
  Spread baseMs;                                // of the steps with all on that alternated with these
  Spread slowdown;                              // ratio of each step to the step with all on before it
  double predictedMs = 0, predictedBaseMs = 0;  // by the cost model
  int64_t arena = 0, baseArena = 0;             // bytes; arena is 0 if there is no plan
  double loss = 0, baseLoss = 0;                // of the first step
};

struct AblationRequest {
  std::string modelFile;
  std::vector<std::string> settings;  // key=value
  std::string cacheDir;
  int64_t steps = 5;              // timed steps per variant
  unsigned threads = 0;           // 0: as hostTarget() decides
  std::vector<std::string> only;  // names; empty: all variants
};

/// Measures all variants, and calls `done` after each. Throws UserError for a model that does not compile, an unknown
/// name, or a .gir file, whose decisions are made already.
std::vector<Ablation> ablate(const AblationRequest &request, const std::function<void(const Ablation &)> &done);

}  // namespace gptc
