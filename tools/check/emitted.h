// Runs a planned module as machine code and checks it in three ways: in its arena, as in production; kernel by kernel
// on tensors that end at protected pages; and in float64 with an error bound for every element.
#pragma once

#include "tools/check/outcome.h"

#include "ir/kernel/schedule.h"
#include "support/thread_pool.h"

namespace gptc {

/// Numbers of elements with a finite and without a finite bound, for single kernels and for whole functions.
struct BoundStats {
  int64_t kernels = 0;
  int64_t bounded = 0, unbounded = 0;            // of single kernels
  int64_t wholeBounded = 0, wholeUnbounded = 0;  // of whole functions
  BoundStats &operator+=(const BoundStats &o);
};

/// Runs the calls of `in` on `planned` and describes the first problem; "" if there is none. `plain` is the module
/// before the passes. Each call is judged separately, from the states that earlier calls left in the arena.
///   - No kernel touches a byte outside its parameters.
///   - Every kernel, on the values it received, stays within the bound of its own operations (ir/kernel/bound.h) of its
///     group's meaning.
///   - The arena equals, to the bit, what the kernels compute if no two tensors share memory. This checks the memory
///     plan and the sharing rules of ir/access.h without repeating their reasoning.
///   - Results and states agree with `plain` within a bound derived from the operations of all kernels in order, and
///     are NaN or infinite where `plain` says so. No tolerance is chosen by hand.
///   - `again`, if given, is `plain` after another order of passes, and agrees to float64's precision.
///
/// Object code is kept in `cacheDir` ("" for none).
std::string emittedDifference(const Module &planned, const Module &plain, const Module *again, const Inputs &in,
                              ThreadPool &pool, const Target &target, const std::string &cacheDir, BoundStats &stats);

}  // namespace gptc
