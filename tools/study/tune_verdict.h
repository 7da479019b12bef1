// Compares steps of a tuned plan with those of the default plan, taken alternately.
#pragma once

#include "tools/study/step_runner.h"

#include <string>
#include <vector>

namespace gptc {

struct StepVerdict {
  bool compared = false;
  Spread baseMs, ms;         // whole steps
  Spread ratio;              // of neighbouring steps
  double noise = 0;          // half the interquartile range of the ratios; of fewer than four, half their range
  bool better = false;       // if so, the tuned schedules stay; else the default's
  bool beyondNoise = false;  // better or worse by more than the noise
};

/// Arguments: milliseconds of paired steps.
StepVerdict verdictOf(const std::vector<double> &baseMs, const std::vector<double> &ms);

/// "59.21 ms a step by default, 52.10 ms as tuned (0.880x, 0.871..0.902): faster by 12.0%".
std::string inWords(const StepVerdict &v);

}  // namespace gptc
