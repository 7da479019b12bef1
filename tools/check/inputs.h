// Arguments and states for any module, made from nothing but its types, its names and a seed: so a module that a tool
// has cut down is run on the same numbers as before.
#pragma once

#include "ir/graph.h"
#include "ir/opdef.h"

#include <string>
#include <vector>

namespace gptc {

/// One call of a function.
struct Call {
  std::string function;
  std::vector<Tensor> args;
};

struct Inputs {
  std::vector<Call> calls;
  unsigned seed = 0;
};

/// Values of one argument or state: floats are multiples of 2^-9 of at most 2 in size, exact in their dtype; integers
/// lie in [-1, below]; where a name says more ("step", "n_valid"), so do the values.
Tensor inputTensor(const std::string &name, const Type &t, int64_t below, unsigned seed);

/// Calls of every function: @train_step twice, @accumulate twice before @update, each other once. Integer arguments
/// that choose a row or a class reach one past either end. In one module of 16 an argument holds a NaN and an
/// infinity, but not with dropout or row_max: of what those make of a NaN, results of 0 and a lost NaN are allowed.
Inputs inputsFor(const Module &m, unsigned seed);

/// What a state of kind "packed" holds, unrounded, where this is what it holds the panels of.
Tensor packedTensor(const State &packed, const Tensor &of);

/// Contents of the states of `m`, by name: parameters and moments random, accumulators zero.
StateMap statesFor(const Module &m, unsigned seed);

}  // namespace gptc
