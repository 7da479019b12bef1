// A second, simple interpreter of kernels for running error analysis (Wilkinson 1986, "Error analysis revisited"). It
// computes each value with a bound of its distance from the same computation in the kernel's own dtypes. Comparisons of
// emitted code with float64 take their tolerances from these bounds.
#pragma once

#include "ir/kernel/kernel.h"

#include <vector>

namespace gptc::kir {

/// A value computed in float64 (integers exactly), and a bound of |value in the kernel's dtypes - value|. Infinite if
/// no bound is known.
struct Bounded {
  double value = 0;
  double error = 0;
};

/// Runs the kernel. buffers[i] holds params[i], inputs with their errors: the next kernel can start from the bounds of
/// this one's results. InternalError if an index, or how often a loop runs, depends on rounding.
void boundErrors(const Kernel &k, std::vector<std::vector<Bounded>> &buffers);

/// Whether the kernel uses a function that emitted code approximates by itself, so that its bits differ from those of
/// the host's library.
bool usesApproximations(const Kernel &k);

}  // namespace gptc::kir
