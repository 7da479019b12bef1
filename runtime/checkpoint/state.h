// States, the data that lives between calls: initial values, and copies between padded and dense layouts.
#pragma once

#include "ir/graph.h"

#include <cstdint>
#include <vector>

namespace gptc {

class Executor;

/// Fills every state of a zeroed arena from its `init` attributes, in parallel. Each value is a pure function of (seed,
/// stream, logical index), as the interpreter's initialValue() defines it; normal values agree with that to f32
/// rounding, not bit for bit. Sets state @rng_seed to the seed.
void initializeStates(Executor &executor, uint64_t seed);

/// The initial value of every element of a state that starts as zeros or as another constant.
double constantValue(const State &s);
/// Resets such a state to its initial value.
void fillConstantState(Executor &executor, const State &s);

/// Fills the copies of parameters: states of kind "whole", "anchor" and "low" (rounded to nearest even), and "packed"
/// from the state whose panels they are. Call it after anything but a step has changed parameters (initializeStates,
/// loading). If ranks along "data" hold pieces of parameters, all ranks must call it.
void fillCopies(Executor &executor);

/// Fills the states of kind "packed" of a parameter that is in files alone from its values, row-major over its padded
/// extents, rounded to nearest even if they are narrower.
void storePanels(Executor &executor, const State &param, const float *values);

/// Stores n values as f32, bf16 or f16 (to nearest even), on all threads.
void storeRounded(Executor &executor, DType dtype, const float *from, void *to, int64_t n);

/// This rank's part of a parameter that is cut along "tensor" alone, row-major over its padded extents. `whole`: the
/// values of all of it.
std::vector<float> ownPart(const Executor &executor, const State &s, const float *whole);

/// Copy between a state, of which this rank may hold a piece, and its padded whole, which has the bytes of wholeType.
/// All ranks must call loadWhole together, because it gathers their pieces.
void storeWhole(Executor &executor, const State &s, const void *whole);
void loadWhole(Executor &executor, const State &s, void *whole);

/// Whether the logical elements lie without gaps at the beginning, as they do if only dimension 0 is padded.
bool isDense(const Type &type);
/// Copy padded storage to dense logical elements and back; the padding becomes zero.
void copyFromPadded(const Type &type, const void *padded, void *dense);
void copyToPadded(const Type &type, const void *dense, void *padded);

/// Sets a scalar state of type i64.
void writeCounter(Executor &executor, llvm::StringRef name, int64_t value);

/// Copies the small states (counters, loss accumulators), so that a step whose update changed no parameter can be
/// rerun.
class SmallStates {
public:
  explicit SmallStates(Executor &executor);
  void restore() const;

private:
  Executor &executor;
  std::vector<std::pair<const State *, std::vector<char>>> saved;
};

}  // namespace gptc
