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

/// A plan that continues up to `slots` sequences at once: the functions @step_N and @score (frontends/model_builder.h),
/// made anew from the plan's model description. Throws UserError(RanksUnclear) if it was compiled from a module.
///
/// It is for `tensor` ranks (Shoeybi et al. 2019), each of which has 1/tensor of the heads, with their cache, and of
/// the hidden features. All call the same functions with the same arguments and get the same logits, to the bit: what
/// is not shared all compute, and sums over ranks give all of them the same bits. Throws the UserErrors of
/// requireShared, and ShapeMismatch if weights in few bits are in blocks that would lie on two ranks.
Plan servingPlan(Plan plan, int64_t slots, const std::string &cacheDir, int64_t tensor = 1);
/// The module of that plan; of GPUs that share a model, too, which are forecast and not run. Compiles no kernels.
/// Throws servingPlan's other UserErrors.
std::unique_ptr<Module> servingModule(const Plan &plan, int64_t slots, const std::string &cacheDir, int64_t tensor = 1);
/// Throws UserErrors: ShapeMismatch if so many ranks cannot share the heads, those of keys and values, and the hidden
/// features; NotBuiltYet for GPUs, norms over all heads, and a number that is no power of two, for which sums have an
/// order that depends on the number of tokens in a call.
void requireShared(const Plan &plan, int64_t tensor);

/// A plan for one rank that makes vectors of texts: the functions @embed_N, in the same way, and with `labels` @labels.
Plan embeddingPlan(Plan plan, const std::string &cacheDir, int64_t labels = 0);

/// The same of an encoder that learns tokens, with @fill.
Plan fillingPlan(Plan plan, const std::string &cacheDir);

/// Bytes of a module's caches of keys and values.
int64_t bytesOfCaches(const Module &m);
/// "8 slots of 1024 tokens: 288.0 MiB of cache, 801.3 MiB in all", of a module of servingPlan; for several ranks with
/// ", on each of 2 ranks".
std::string slotsInWords(const Module &serving, int64_t slots);
/// How weights are kept: "q8_0, 24 of 25 weights; products round ..."; "" if as they are computed with.
std::string weightsInWords(const Module &m);

/// A plan without functions that has what servingPlan, or of an encoder embeddingPlan, keeps in few bits
/// (ir/quantized.h), and beside it every parameter in f32. Throws servingPlan's errors.
Plan weightsPlan(Plan plan, const std::string &cacheDir);

}  // namespace gptc
