// A second, simple interpreter of kernels that carries, with each value, a bound of how far the same computation in the
// kernel's own dtypes may be from it: running error analysis (Wilkinson 1986, "Error analysis revisited"). So the
// tolerance of a comparison between emitted code and float64 follows from the operations that the kernel does.
#pragma once

#include "ir/kernel/kernel.h"

#include <vector>

namespace gptc::kir {

/// A value computed in float64 (integers exactly), and a bound of |value in the kernel's dtypes - value|. Infinite
/// where nothing can be said.
struct Bounded {
  double value = 0;
  double error = 0;
};

/// Runs the kernel. buffers[i] holds params[i]; what the kernel reads may carry errors of its own, so that the bounds
/// of one kernel's results are those with which the next one starts.
void boundErrors(const Kernel &k, std::vector<std::vector<Bounded>> &buffers);

/// Whether the kernel uses a function that code computes by its own approximation: then bits differ from those of the
/// host's library.
bool usesApproximations(const Kernel &k);

}  // namespace gptc::kir
