// What a module does on given inputs, by the interpreter, and how two such outcomes differ.
#pragma once

#include "tools/check/inputs.h"

#include <functional>

namespace gptc {

struct Outcome {
  std::vector<std::vector<Tensor>> results;  // by call
  StateMap states;
};

Outcome interpretCalls(const Module &m, const Inputs &in);

/// Where they differ in a bit (of value: +0 equals -0, and one NaN another); "" where they do not. States that only
/// `b` has are left out, padding too.
std::string differenceOf(const Outcome &a, const Outcome &b);

/// Whether some value is stored in 16 bits. Ops round to that, also in the interpreter.
bool holdsNarrow(const Module &m);

/// Calls f(name, tensor of a, tensor of b) for everything that both must have; returns what is missing, or "".
std::string forEachPair(const Outcome &a, const Outcome &b,
                        const std::function<void(const std::string &, const Tensor &, const Tensor &)> &f);

}  // namespace gptc
