// What each optimisation is worth, measured: the training step with it off against the step with all on, in one
// process, in turn, with the same recipes.
#pragma once

#include "passes/analysis/cost.h"
#include "tools/study/step_runner.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gptc {

struct Ablation {
  std::string name;     // "decomposed attention"
  std::string skipped;  // why it was not measured; empty otherwise
  Spread ms;            // per step
  Spread baseMs;        // of the steps with all on, taken in turn with these
  Spread slowdown;      // of each step over the one with all on before it
  double predictedMs = 0, predictedBaseMs = 0;
  int64_t arena = 0, baseArena = 0;  // bytes; arena is 0 where there is no plan
  double loss = 0, baseLoss = 0;     // of the first step
};

struct AblationRequest {
  std::string modelFile;
  std::vector<std::string> settings;  // key=value
  std::string cacheDir;
  int64_t steps = 5;  // timed, of each variant
  unsigned threads = 0;
  std::vector<std::string> only;  // names; empty: all
};

/// Calls `done` after each variant. Throws UserError for a model that does not compile, a name that does not exist, or
/// a .gir file, where it is too late to decide otherwise.
std::vector<Ablation> ablate(const AblationRequest &request, const std::function<void(const Ablation &)> &done);

}  // namespace gptc
