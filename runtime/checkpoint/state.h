// What lives between calls: initial values, and copies between the plan's padded layout and dense logical tensors.
#pragma once

#include "ir/graph.h"

#include <cstdint>
#include <vector>

namespace gptc {

class Executor;

/// Fills every state of a fresh arena (zeros are there already): by its `init` attributes, in parallel, each value a
/// pure function of (seed, stream, logical index) as initialValue() of the interpreter defines it (normal values agree
/// with that to f32 rounding, not bit for bit). State @rng_seed is set to the seed.
void initializeStates(Executor &executor, uint64_t seed);

/// The initial value of every element of a state that starts as zeros or as a constant.
double constantValue(const State &s);
/// Gives such a state, which need not be fresh, its initial value.
void fillConstantState(Executor &executor, const State &s);

/// Fills the states of kind "whole" and "low" from their parameters, the latter rounded to nearest even, and "packed"
/// from what these are the panels of: after anything but a step has changed parameters (initializeStates, loading).
/// Where ranks along "data" hold pieces of parameters, all ranks call it.
void fillCopies(Executor &executor);

/// Gives a state its content from that of the whole, padded: of pieces this rank's. And the whole from all ranks'
/// pieces, which all of them ask for together; `whole` has the bytes of wholeType.
void storeWhole(Executor &executor, const State &s, const void *whole);
void loadWhole(Executor &executor, const State &s, void *whole);

/// Whether the logical elements stand without gaps at the beginning, as they do where only dimension 0 is padded.
bool isDense(const Type &type);
/// Dense logical elements from padded storage, and back (padding becomes zero).
void copyFromPadded(const Type &type, const void *padded, void *dense);
void copyToPadded(const Type &type, const void *dense, void *padded);

/// Sets a scalar state of type i64.
void writeCounter(Executor &executor, llvm::StringRef name, int64_t value);

/// The small states (counters, accumulators of the loss) as bytes: what has to be put back to run a step again after an
/// update that changed no parameter.
class SmallStates {
public:
  explicit SmallStates(Executor &executor);
  void restore() const;

private:
  Executor &executor;
  std::vector<std::pair<const State *, std::vector<char>>> saved;
};

}  // namespace gptc
