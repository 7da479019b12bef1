// Checkpoints: OUT_DIR/checkpoints/step-00001000/ is a model's folder as Hugging Face's programs read it, with
//
//   model.safetensors      parameters, under Hugging Face's names and in its layouts (runtime/checkpoint/file_layout.h)
//   config.json ...        the model's description and tokenizer, as they are in the plan (HfFiles)
//   manifest.json          step; BLAKE3 of the other files and of itself; hashes of plan, model, training data and each
//                          of its files (runtime/data/data_print.h); the optimizer; the keys of [model] that determine
//                          what is computed; the validation loss, if one was measured at that step
//   state/                 what only gptc reads, as other programs take every safetensors file for weights:
//     optimizer.safetensors  moments (their names: passes/optimizer.cpp), step and other counters; in checkpoints of
//                            earlier versions it lies beside the weights
//
// Each of several ranks writes one file of each kind: model-00001-of-00004.safetensors has the whole parameters of a
// part of the model, and model.safetensors.index.json lists them as in Hugging Face's own sharded checkpoints;
// state/optimizer-00001-of-00004.safetensors has the rank's moments, which may be pieces
// (runtime/checkpoint/tensor_files.h). Both kinds load on any number of ranks. Only moments of ranks that meet in outer
// steps (passes/outer_steps.cpp), and what ranks leave out of gradients (passes/compress_gradients.cpp), are each
// rank's own: they load on as many ranks, which the manifest says.
//
// `latest` and `best` beside these folders are relative links to the newest checkpoint and to the one with the least
// validation loss. They are for people and other programs: gptc itself looks at the checkpoints.
//
// A checkpoint appears completely or not at all: it is written to a temporary folder, every file and folder is fsynced,
// then the folder is renamed (runtime/checkpoint/checkpoint_saver.h). A failed save throws UserError(DiskFull,
// Unwritable), removes its temporary folder and leaves older checkpoints alone.
//
// A checkpoint loads into plans of the same model with any precision: floats of another dtype are converted (rounded to
// nearest even, or widened exactly), and counters missing in the checkpoint (those of fp16's loss scale) get their
// initial values. Gradients, caches and low copies are not saved.
#pragma once

#include "runtime/data/data_print.h"
#include "runtime/plan/plan.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

class AtomicDir;
class Executor;

struct CheckpointInfo {
  int64_t step = 0;
  std::string planHash;
  ModelIdentity model;
  std::string dataFingerprint;  // DataPrint::str; TokenData::sampledFingerprint in checkpoints of earlier versions
  std::string results;          // resultIdentity of the plan; empty in checkpoints of earlier versions
  // Set by loading:
  std::string dir;
  std::vector<std::string> notes;  // what was converted or is missing in the checkpoint: one line each, for the user
  /// Hashes of the earlier plans of this run, from whose checkpoints it was resumed; the latest last.
  std::vector<std::string> earlierPlans;
  std::optional<double> valLoss = {};  // measured at its step, if at all
  DataPrint data = {};                 // unknown in checkpoints of earlier versions

  /// The `earlierPlans` of a checkpoint that continues this one with `plan`; at most 64.
  std::vector<std::string> plansBefore(const std::string &plan) const;
  /// Hashes of all plans whose checkpoints belong to this run.
  std::vector<std::string> ownPlans() const;
};

class CheckpointStore {
public:
  explicit CheckpointStore(const std::string &outDir);

  /// Saves all states but caches, gradients and copies, and waits for it. All ranks must call it together.
  void save(Executor &executor, const CheckpointInfo &info) const;
  /// Renames checkpoints after `step`, which loading passed over as damaged, to damaged-step-N, so that they no longer
  /// count as the newest and are not tried again.
  void setAsideBeyond(int64_t step) const;
  /// Removes all checkpoints of these plans but the `keep` newest and the best. Other checkpoints do not belong to this
  /// run and stay.
  void prune(int64_t keep, const std::vector<std::string> &plans) const;
  /// Step of the checkpoint with the lowest validation loss, the newest of equal ones; nullopt if none has a loss. With
  /// `plans`, only their checkpoints count.
  std::optional<int64_t> best(const std::vector<std::string> *plans = nullptr) const;
  /// Points the links `latest` and `best` to the newest checkpoint and to the best(), each in one step, and removes one
  /// that has nothing to point to. Returns why a link cannot be set, "" if all are: not every file system has links,
  /// and what is no link is left alone.
  std::string updateLinks() const;
  /// Adds the validation loss measured at its step to an existing checkpoint.
  void noteValidation(int64_t step, double valLoss) const;

  /// Loads the newest intact checkpoint into the executor's states, for all ranks together. Reports each damaged one
  /// passed over to `warn`; nullopt if there is no checkpoint. `parametersOnly` leaves other states alone. Checkpoints
  /// after step `atMost` are ignored (-1: no limit). Throws UserError(CheckpointMismatch) for a checkpoint of another
  /// model, naming the keys of [model] that differ, of another optimizer, or of another number of ranks if each has
  /// moments of its own; UserError(CheckpointDamaged) if there are checkpoints but none is intact. A checkpoint that
  /// lacks a key counts as agreeing, which the notes say.
  std::optional<CheckpointInfo> loadNewest(Executor &executor, const ModelIdentity &model, bool parametersOnly,
                                           const std::function<void(const std::string &)> &warn,
                                           int64_t atMost = -1) const;
  /// Loads all states of the checkpoint of this step. Throws the same errors, and FileMissing.
  CheckpointInfo load(Executor &executor, const ModelIdentity &model, int64_t step) const;
  /// Loads the parameters of the checkpoint of this step, or of the one in folder `dir`. Throws the same errors.
  CheckpointInfo loadParameters(Executor &executor, const ModelIdentity &model, int64_t step) const;
  static CheckpointInfo loadParameters(Executor &executor, const ModelIdentity &model, const std::string &dir);

  /// A checkpoint's files for other programs, once all of them match their checksums. Throws
  /// UserError(CheckpointDamaged).
  struct Published {
    CheckpointInfo info;
    std::vector<std::string> weights;  // paths
    HfFiles described;                 // empty in checkpoints of earlier versions
  };
  static Published published(const std::string &dir);

  // For the writer of a checkpoint: its final path; a check that there is room for it (throws); and its completion,
  // which adds the manifest and renames the folder. `files` maps file names to checksums.
  std::string pathOf(int64_t step) const;
  void requireSpace(int64_t bytes) const;
  void complete(AtomicDir &dir, const CheckpointInfo &info, const Module &planned,
                const std::map<std::string, std::string> &files) const;

  /// Steps of all checkpoints, newest first.
  std::vector<int64_t> steps() const;
  /// Removes what interrupted saves and removals left behind. Only the holder of the run's lock may call it.
  void cleanUp() const;

private:
  std::string folder;
};

/// The files of the weights in a folder: model.safetensors, or those that its index names. Throws
/// UserError(CheckpointDamaged) for an index that names none.
std::vector<std::string> weightFiles(const std::string &folder);

/// Checks by their headers alone that the weights at `path`, as loadWeights takes them, are those of a model, a module
/// in any phase: names, dtypes and shapes of all tensors. Returns whether a matrix, but for the table of positions, has
/// more than 16 bits. Throws what loadWeights throws, with `remedy` as the fix of what does not fit. `begins`: the
/// classifier of labels may be missing, as for beginWithWeights.
bool checkWeights(const Module &model, const std::string &path, const std::string &remedy, bool begins = false);

/// Loads parameters from a GGUF file (runtime/checkpoint/gguf_weights.h), a safetensors file, a folder with one, or
/// several files with Hugging Face's index. Names may begin with "transformer."; dtypes are f32, bf16 or f16. Throws
/// UserErrors FileMissing, CheckpointDamaged, and CheckpointMismatch: for a missing tensor, another shape, a tensor
/// that has no place in the model and that changes its meaning, or a checkpoint of CheckpointStore whose keys of
/// [model] differ from `model`'s.
void loadWeights(Executor &executor, const std::string &path, const ModelIdentity &model);

/// The same for a run that begins: of a model with labels the layers of its head (new_layers.h) keep the values that
/// they have where the files lack them, weight and bias. Returns a line for the user on each of those.
std::vector<std::string> beginWithWeights(Executor &executor, const std::string &path, const ModelIdentity &model);

}  // namespace gptc
