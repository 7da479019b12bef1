// A plan: the output of `gptc compile` and the input of `gptrun`. It is a folder of data, never of code:
//
//   manifest.json    schema, target, run settings, BLAKE3 of the other files and of itself
//   joint.gir        forward, backward and optimizer, before any decision
//   planned.gir      fused, scheduled, laid out in memory: the module that runs
//   schedules.json   kernel -> schedule, for people; must agree with planned.gir
//   hf/              config.json, generation_config.json and the tokenizer's files: what checkpoints have beside the
//                    weights, as Hugging Face's programs read them; older plans, and those of modules, have none
//
// Facts of the model (block_size, micro_batch, accumulate, vocab_size, n_layer, n_head, n_embd, ...) are module
// attributes only; RunSettings (ir/settings/settings.h) holds what the graph does not.
#pragma once

#include "ir/facts.h"
#include "ir/graph.h"
#include "ir/kernel/schedule.h"
#include "ir/settings/settings.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// The files of a Hugging Face folder beside its weights: name -> text.
using HfFiles = std::map<std::string, std::string>;
/// Why these files are refused, "" if they are not: anybody may have written them, and they go to programs that load
/// models. Names are of a fixed list; descriptions are JSON objects that name no code.
std::string hfFilesProblem(const HfFiles &files);

struct Plan {
  std::unique_ptr<Module> joint;    // joint.gir
  std::unique_ptr<Module> planned;  // planned.gir
  Target target;                    // the target of the schedules
  RunSettings run;
  HfFiles hf;
  /// The settings it was compiled from, key=value, so that the same model can be compiled differently (gptc explain);
  /// empty if the input was a module.
  std::vector<std::string> model;
  std::string madeFrom;   // for a plan derived for other ranks: a hash of what it follows from; else ""
  std::string hash;       // BLAKE3 of planned.gir; set by writePlan and loadPlan
  std::string dir;        // absolute; set by writePlan and loadPlan
  bool madeHere = false;  // this user's compiler made it: it has the cache's mark; set by loadPlan
};

/// Whether a plan's folder is there, and not another program's model or a checkpoint of ours. It may be damaged.
bool isPlanFolder(const std::string &path);
/// Whether an argument that is a plan or a model file must be a plan: it is a folder. loadPlan says what it lacks.
bool isGivenAsPlan(const std::string &path);

/// Writes the folder completely or not at all. Replaces an older plan there; throws UserError(Unwritable) if the folder
/// is not empty and no plan. Invalid modules are an InternalError. With a cache's secret (cache_secret.h) it marks the
/// plan as made here; the mark is not part of its hash.
void writePlan(const std::string &dir, Plan &plan, const std::string &secret = "");

/// Reads and verifies everything: schema, hashes, both modules (verifier), the memory plan (independent checker),
/// schedules, sizes and settings. Throws UserError: FileMissing if there is no plan, NotBuiltYet for a newer schema,
/// PlanDamaged for anything else. The cache's secret is needed to set `madeHere`.
Plan loadPlan(const std::string &dir, const std::string &secret = "");

/// Why a module cannot be a plan's: missing attributes that the runtime relies on, states that it cannot fill,
/// functions whose signatures differ from its calls; "" if nothing is wrong.
std::string planProblem(const Module &planned);

/// An op that runs code: its name (`train_step.17`, the 17th fused op of that function) and its schedule as text.
struct PlannedKernel {
  std::string name;
  const Op *op;
  std::string schedule;
};
std::vector<PlannedKernel> kernelsOf(const Module &planned);
/// Whether ranks send factors of gradients. One rank sends nothing, whatever parallel.compression says.
bool compressesGradients(const Module &m);
/// Whether the first steps, up to ParallelFacts::compressFrom, call @train_step_whole or @update_whole in place of
/// @train_step or @update (passes/compress_gradients.cpp).
bool beginsWhole(const Module &m);
/// Whether @decode or @prefill chooses the next token, too; those of earlier versions do not.
bool choosesTokens(const Function &decode);

/// The id of an encoder's [MASK]; -1 for a decoder.
int64_t maskToken(const Module &m);
/// Logical elements of all states of kind "param"; `withoutPositions` leaves out the position table.
int64_t parameterCount(const Module &m, bool withoutPositions);
/// The term 12 L H Q T of flopsPerToken; of a layer with a window, T is what a token sees.
double attentionFlopsPerToken(const ModelFacts &m);
/// FLOPs per training token by nanoGPT's formula: 6 N + 12 L H Q T, where N counts parameters without wpe (Karpathy's
/// estimate_mfu, after PaLM, appendix B), without the table of token types, and without wte if the classifier has its
/// own matrix.
double flopsPerToken(const Module &m);

/// Decides whether a checkpoint fits a model.
struct ModelIdentity {
  std::string parameters;  // BLAKE3 of the names and logical shapes of all parameters
  /// The keys of [model] that change what is computed, with values as in a model file: `n_head`, `4`; `activation`,
  /// `"relu"`. Without keys that only affect training (dropout) or that are not written (preset, init_from). A module
  /// from a .gir may lack some.
  std::map<std::string, std::string> keys;
  bool operator==(const ModelIdentity &) const = default;
};
ModelIdentity modelIdentity(const Module &m);

/// A hash of everything besides the data that determines a run's bits: plans with equal hashes give equal results. If
/// the graph defines the order of sums, it does not depend on micro-batch, ZeRO stage and, with reduce_order = "tree",
/// the number of data ranks. For a plan made from a module, or one that calls libraries, it is the plan's own hash.
std::string resultIdentity(const Plan &plan);

}  // namespace gptc
