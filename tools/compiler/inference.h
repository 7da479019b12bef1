// Plans sampling and evaluation separately: the same computation as these functions in a training plan, in only the
// memory that they need.
#pragma once

#include "runtime/plan/plan.h"

#include "llvm/ADT/ArrayRef.h"

#include <memory>
#include <string>

namespace gptc {

/// The functions that `gptrun eval` and `gptrun sample` call.
constexpr llvm::StringRef kEvaluation[] = {"eval"}, kSampling[] = {"prefill", "decode"};

/// A plan for one rank with only those of `functions` that `plan` has. It keeps their kernels and schedules, so every
/// bit is that of training; the parameters they read, each in the precision in which they read it; their caches; and an
/// arena for these alone. It can be opened as a Session but not written.
///
/// A plan for several ranks is planned anew for one rank from its model description, for the same target and without
/// the memory budget of training. Throws UserError(RanksUnclear) if it was compiled from a module.
Plan inferencePlan(Plan plan, llvm::ArrayRef<llvm::StringRef> functions, const std::string &cacheDir);

/// A plan for one rank that continues up to `slots` sequences at once: the functions @step_N and @score
/// (frontends/model_builder.h), made anew from the plan's model description. Throws UserError(RanksUnclear) if it was
/// compiled from a module.
Plan servingPlan(Plan plan, int64_t slots, const std::string &cacheDir);
/// The module of that plan. Compiles no kernels.
std::unique_ptr<Module> servingModule(const Plan &plan, int64_t slots, const std::string &cacheDir);

/// A plan for one rank that makes vectors of texts: the functions @embed_N, in the same way, and with `labels` @labels.
Plan embeddingPlan(Plan plan, const std::string &cacheDir, int64_t labels = 0);

/// Bytes of a module's caches of keys and values.
int64_t bytesOfCaches(const Module &m);
/// "8 slots of 1024 tokens: 288.0 MiB of cache, 801.3 MiB in all", of a module of servingPlan.
std::string slotsInWords(const Module &serving, int64_t slots);
/// How weights are kept: "q8_0, 24 of 25 weights; products round ..."; "" if as they are computed with.
std::string weightsInWords(const Module &m);

/// A plan without functions that has what servingPlan, or of an encoder embeddingPlan, keeps in few bits
/// (ir/quantized.h), and beside it every parameter in f32. Throws servingPlan's errors.
Plan weightsPlan(Plan plan, const std::string &cacheDir);

}  // namespace gptc
