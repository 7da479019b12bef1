// Runs a module in the interpreter on given inputs, and compares two outcomes.
#pragma once

#include "tools/check/inputs.h"

#include <functional>

namespace gptc {

struct Outcome {
  std::vector<std::vector<Tensor>> results;  // one entry per call
  StateMap states;
};

Outcome interpretCalls(const Module &m, const Inputs &in);

/// The first difference in bits (but +0 equals -0, and all NaNs are equal); "" if there is none. Ignores padding, and
/// states that only `b` has.
std::string differenceOf(const Outcome &a, const Outcome &b);

/// Whether any value is stored in 16 bits, to which ops round, also in the interpreter.
bool holdsNarrow(const Module &m);

/// Calls f(name, tensor of a, tensor of b) for everything that both must have. Returns what is missing, or "".
std::string forEachPair(const Outcome &a, const Outcome &b,
                        const std::function<void(const std::string &, const Tensor &, const Tensor &)> &f);

}  // namespace gptc
