// Random typed modules that look like parts of a GPT, 5 to 60 ops: @forward with parameters and a loss, to be
// differentiated; or @f, which mixes forward and backward ops, sums over tokens, optimizer and caches, and reads and
// writes states in any order. Extents like edges: 1, powers of two and their neighbours, primes; equal ones more often
// than not, which hides the difference between a row, a suffix and a column.
#pragma once

#include "ir/graph.h"

#include <memory>

namespace gptc::test {

/// A pure function of the seed. The module verifies, and its values on inputsFor(m, seed) stay of moderate size, so
/// that comparing f32 with f64 says something.
std::unique_ptr<Module> randomModule(unsigned seed);

}  // namespace gptc::test
