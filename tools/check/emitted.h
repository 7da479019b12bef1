// A planned module as machine code, three ways: in its arena, as it would run; kernel by kernel on memory of which each
// tensor ends at a protected page; and in float64 with an error bound for every element.
#pragma once

#include "tools/check/outcome.h"

#include "ir/kernel/schedule.h"
#include "support/thread_pool.h"

namespace gptc {

/// How much the comparisons could say: elements with a finite bound and without, of single kernels and of functions.
struct BoundStats {
  int64_t kernels = 0;
  int64_t bounded = 0, unbounded = 0;
  int64_t wholeBounded = 0, wholeUnbounded = 0;
  BoundStats &operator+=(const BoundStats &o);
};

/// Runs the calls of `in` on `planned` and says what is wrong; "" when nothing is. `plain` is the module as it was
/// before the passes; each call is judged by itself, from the states that the calls before it left in the arena.
///   - No kernel touches a byte outside of its parameters.
///   - Every kernel, on the numbers that it met, stays within the bound of its own operations (ir/kernel/bound.h) of
///     what its group means.
///   - The arena holds, to the bit, what the kernels make where no two tensors share memory: this judges the plan, and
///     what ir/access.h allows to share, without any reasoning of theirs.
///   - Results and states are as `plain` says, within a bound that follows from the operations of all kernels in order,
///     and NaN or infinite where it says so. No limit is set by hand.
///   - `again`, if given, is `plain` by another order of passes, and agrees as far as float64 does.
/// Object code is kept in `cacheDir` ("" for none).
std::string emittedDifference(const Module &planned, const Module &plain, const Module *again, const Inputs &in,
                              ThreadPool &pool, const Target &target, const std::string &cacheDir, BoundStats &stats);

}  // namespace gptc
