// Sampling and evaluation planned by themselves: what a training plan computes in these functions, in the memory that
// they alone need.
#pragma once

#include "runtime/plan/plan.h"

#include "llvm/ADT/ArrayRef.h"

#include <string>

namespace gptc {

/// The functions that `gptrun eval` and `gptrun sample` call.
constexpr llvm::StringRef kEvaluation[] = {"eval"}, kSampling[] = {"prefill", "decode"};

/// A plan for one rank that holds these functions of `plan`, as far as it has them, and nothing else: their kernels and
/// schedules, so that every bit is that of the same function inside training; the parameters that they read, each in
/// the precision that they read it in; their caches; and an arena for these alone. It can be opened as a Session and
/// not be written.
///
/// A plan for several ranks is planned anew for one, from the model's description that it holds, for the same target
/// and without the budget of memory that the ranks of the training have: UserError(RanksUnclear) where it was compiled
/// from a module.
Plan inferencePlan(Plan plan, llvm::ArrayRef<llvm::StringRef> functions, const std::string &cacheDir);

}  // namespace gptc
