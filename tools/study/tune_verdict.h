// What steps of a tuned plan and of the default's, taken in turn, say about it.
#pragma once

#include "tools/study/step_runner.h"

#include <string>
#include <vector>

namespace gptc {

struct StepVerdict {
  bool compared = false;
  Spread baseMs, ms;         // whole steps
  Spread ratio;              // of neighbours
  double noise = 0;          // half the range of the middle half of the ratios; of fewer than four, of all
  bool better = false;       // and what was found stays; else the default does
  bool beyondNoise = false;  // better or worse by more than that
};

/// Milliseconds of steps, in pairs.
StepVerdict verdictOf(const std::vector<double> &baseMs, const std::vector<double> &ms);

/// "59.21 ms a step by default, 52.10 ms as tuned (0.880x, 0.871..0.902): faster by 12.0%".
std::string inWords(const StepVerdict &v);

}  // namespace gptc
