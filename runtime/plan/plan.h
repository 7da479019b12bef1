// A plan: what `gptc compile` makes and `gptrun` runs. A folder of data, never of code:
//
//   manifest.json    schema, target, run settings, BLAKE3 of the other files and of itself
//   joint.gir        forward, backward and optimizer, before anything was decided
//   planned.gir      fused, scheduled, laid out in memory: this is what runs
//   schedules.json   kernel -> schedule, for people; must agree with planned.gir
//
// Facts of the model (block_size, micro_batch, accumulate, vocab_size, n_layer, n_head, n_embd, ...) are module
// attributes and stand only there; RunSettings holds what is not in the graph.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/schedule.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// How to run a plan. All paths are absolute in memory (a relative one in a file is taken from the plan's folder).
struct RunSettings {
  std::string outDir;                   // log.jsonl, checkpoints, traces
  int64_t steps = 0;                    // optimizer steps of the whole run
  uint64_t seed = 1337;                 // initial values, data order, dropout (state @rng_seed is set to it)
  std::string onNonfinite = "explain";  // skip | halt | explain
  std::string initFrom = "scratch";     // scratch | hf:DIR | ckpt:DIR: a folder with model.safetensors
  std::string trainData;                // token file, globs allowed
  std::string valData;                  // likewise; empty: no evaluation
  std::string tokenizer;                // tokenizer.json; empty: no samples
  int64_t evalEvery = 0;                // steps between evaluations; 0: only at the end
  int64_t evalSteps = 0;                // global batches per evaluation; 0: the whole split
  int64_t sampleEvery = 0;              // 0: never
  std::string samplePrompt;
  int64_t sampleTokens = 64;
  int64_t checkpointEvery = 0;  // 0: only at the end
  int64_t checkpointKeep = 3;
  std::string checkpointAsync = "auto";  // whether steps go on while one is written: true | false | auto
  int64_t logEvery = 10;
  bool tensorboard = false;
  std::vector<int64_t> traceSteps;
  /// What MFU is of, FLOP/s; 0: a GPU's by its data sheet where that is known, else measured; -1: measured.
  double mfuPeak = 0;
  bool operator==(const RunSettings &) const = default;
};

struct Plan {
  std::unique_ptr<Module> joint;
  std::unique_ptr<Module> planned;
  Target target;  // that the schedules were chosen for
  RunSettings run;
  /// The model description it was compiled from, key=value, so that the same model can be compiled otherwise
  /// (gptc explain); empty where that was a module.
  std::vector<std::string> model;
  std::string madeFrom;   // of a plan made anew for other ranks: a hash of what it follows from; else empty
  std::string hash;       // BLAKE3 of planned.gir; set by writePlan and loadPlan
  std::string dir;        // absolute; set by writePlan and loadPlan
  bool madeHere = false;  // by this user's compiler: it has the mark of the cache; set by loadPlan
};

/// Writes the folder whole or not at all, replacing an older plan of that name (a non-empty folder that is no plan is
/// left alone: UserError(Unwritable)). The modules must be valid: a violation is an InternalError. With the secret of a
/// cache (cache_secret.h) the plan is marked as made here, which its hash does not show.
void writePlan(const std::string &dir, Plan &plan, const std::string &secret = "");

/// Reads and verifies everything: schema, hashes, both modules (verifier), the memory plan (independent checker),
/// schedules, sizes and settings. Throws UserError: FileMissing where there is no plan, PlanDamaged for all else,
/// NotBuiltYet for a plan of a newer schema. With the secret of a cache it is known whether the plan was made here.
Plan loadPlan(const std::string &dir, const std::string &secret = "");

/// What keeps a module from being a plan's: attributes that the runtime relies on, states that it cannot fill,
/// functions with other signatures than it calls; "" when nothing does.
std::string planProblem(const Module &planned);

/// One op that runs code: its name (`train_step.17`, the 17th fused op of that function) and schedule as text.
struct PlannedKernel {
  std::string name;
  const Op *op;
  std::string schedule;
};
std::vector<PlannedKernel> kernelsOf(const Module &planned);

/// An encoder's [MASK], or -1 for a decoder.
int64_t maskToken(const Module &m);
/// Logical elements of all states of kind "param", but for the position table when `withoutPositions`.
int64_t parameterCount(const Module &m, bool withoutPositions);
/// FLOPs of one training token by nanoGPT's formula: 6 N + 12 L H Q T, N = parameters without wpe (Karpathy's
/// estimate_mfu, after PaLM, appendix B), nor wte where the classifier has a matrix of its own.
double flopsPerToken(const Module &m);

/// What makes checkpoints fit a model.
struct ModelIdentity {
  std::string parameters;  // BLAKE3 of the names and logical shapes of all parameters
  /// The keys of [model] that change what is computed, and their values as a model file has them: `n_head`, `4`;
  /// `activation`, `"relu"`. Not those that change only training (dropout) or what is not written (preset, init_from).
  /// Missing where the module, from a .gir, does not say them.
  std::map<std::string, std::string> keys;
  bool operator==(const ModelIdentity &) const = default;
};
ModelIdentity modelIdentity(const Module &m);

/// A hash of what decides the bits of a run's results beside its data: two plans with the same one give the same. Where
/// the order of sums is the graph's, that leaves out micro-batch, ZeRO stage and, with reduce_order = "tree", the ranks
/// along data. A plan from a module, and one that calls libraries, is like no other.
std::string resultIdentity(const Plan &plan);

}  // namespace gptc
