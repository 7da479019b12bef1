// What the float64 interpreter reads.
#pragma once

#include "ir/opdef.h"

namespace gptc {

/// The states of a run with this seed, before its first step.
inline StateMap initialStates(const Module &m, uint64_t seed) {
  StateMap states;
  for (const auto &s : m.states)
    states[s->name] = initialValue(*s, seed);
  return states;
}

inline Tensor integers(Type type, std::vector<double> values) { return Tensor(std::move(type), std::move(values)); }

}  // namespace gptc
