// Makes arguments and states for any module from its types, names and a seed only, so a reduced module runs on the same
// numbers as the original.
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

/// Values of an argument or state: floats are multiples of 2^-9 with magnitude at most 2, exact in their dtype;
/// integers lie in [-1, below], but tensors of u32, which are the bits of numbers, have any words; names with a meaning
/// ("step", "n_valid") get suitable values.
Tensor inputTensor(const std::string &name, const Type &t, int64_t below, unsigned seed);

/// Calls every function: @train_step twice, @accumulate twice before @update, all others once. Integer arguments that
/// select a row or class exceed the range by one at both ends. In one of 16 modules an argument contains NaN and
/// infinity, except with dropout or row_max, which may turn NaN into 0 or lose it.
Inputs inputsFor(const Module &m, unsigned seed);

/// The content of a state of kind "packed" that packs `of`; `rounds`: to its own type, if that is narrower.
Tensor packedTensor(const State &packed, const Tensor &of, bool rounds = true);

/// Contents of the states of `m` by name: random parameters and moments, zero accumulators.
StateMap statesFor(const Module &m, unsigned seed);

}  // namespace gptc
