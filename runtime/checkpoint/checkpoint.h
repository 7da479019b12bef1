// Checkpoints: OUT_DIR/checkpoints/step-00001000/ with
//
//   model.safetensors      parameters, under Hugging Face's names and in its layouts (runtime/checkpoint/file_layout.h)
//   optimizer.safetensors  moments (their names: passes/optimizer.cpp), step and other counters
//   manifest.json          step, BLAKE3 of the other files and of itself, hashes of plan, model and training data, with
//                          those of each file of it (runtime/data/data_print.h), the optimizer, the keys of [model]
//                          that say what is computed, and the validation loss where one was measured at that step
//
// Several ranks write a file of each kind each: model-00001-of-00004.safetensors with the parameters of a part of the
// model, whole, and model.safetensors.index.json, which is how Hugging Face's own checkpoints in several files look;
// optimizer-00001-of-00004.safetensors with the moments that the rank has, which may be pieces
// (runtime/checkpoint/tensor_files.h). Both kinds load on any number of ranks.
//
// A checkpoint appears whole or not at all: written to a temporary folder, every file and folder fsynced, renamed
// (runtime/checkpoint/checkpoint_saver.h). A failed save throws (DiskFull, Unwritable), leaves no temporary folder and
// touches no older checkpoint.
//
// A checkpoint loads into plans of the same model whatever their precision: floats of another dtype are converted
// (rounded to nearest even, or widened exactly), and counters that the checkpoint does not have (those of fp16's loss
// scale) start at their initial values. Gradients, caches and low copies are in no checkpoint.
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
  std::string dataFingerprint;  // DataPrint::str; in checkpoints of earlier versions TokenData::sampledFingerprint
  std::string results;          // resultIdentity of the plan; empty in checkpoints of earlier versions
  // Set by load:
  std::string dir;
  std::vector<std::string> notes;  // what was converted or is not in the checkpoint, a line each, for the user
  /// Of the plans that this run had before: it was resumed from their checkpoints. The latest last.
  std::vector<std::string> earlierPlans;
  std::optional<double> valLoss = {};  // at its step, where it was measured
  DataPrint data = {};                 // not known in checkpoints of earlier versions

  /// What a checkpoint of `plan` says that goes on from this one.
  std::vector<std::string> plansBefore(const std::string &plan) const;
  /// Hashes of all plans whose checkpoints are this run's.
  std::vector<std::string> ownPlans() const;
};

class CheckpointStore {
public:
  explicit CheckpointStore(const std::string &outDir);

  /// Saves all states but caches, gradients and copies, now. Where the executor has ranks, all of them call it
  /// together.
  void save(Executor &executor, const CheckpointInfo &info) const;
  /// Renames checkpoints beyond `step`, which loading passed over, to damaged-step-N: they are not to be counted among
  /// the newest, nor tried again.
  void setAsideBeyond(int64_t step) const;
  /// Removes all but the `keep` newest and the best, if they are of one of these plans: what else lies there is not
  /// this run's.
  void prune(int64_t keep, const std::vector<std::string> &plans) const;
  /// The step of the checkpoint with the least validation loss; of equal ones the newest. nullopt where none has one.
  /// With `plans` only those of one of them count.
  std::optional<int64_t> best(const std::vector<std::string> *plans = nullptr) const;
  /// Adds to a checkpoint that is there already the validation loss that was measured at its step.
  void noteValidation(int64_t step, double valLoss) const;

  /// Loads the newest checkpoint that is whole, for all ranks together, into the executor's states, telling `warn` of
  /// each damaged one passed over; nullopt where there is none at all. `parametersOnly` leaves other states alone.
  /// UserErrors: CheckpointMismatch for one of another model, whose message holds the keys of [model] that differ, or
  /// of another optimizer; CheckpointDamaged when there are checkpoints and none is whole. One that does not say a key
  /// is taken to agree, and the notes say so. Checkpoints beyond the step `atMost` are passed over in silence; -1: none
  /// is.
  std::optional<CheckpointInfo> loadNewest(Executor &executor, const ModelIdentity &model, bool parametersOnly,
                                           const std::function<void(const std::string &)> &warn,
                                           int64_t atMost = -1) const;
  /// The parameters of the checkpoint of this step, or of the one in a folder wherever it is. The same errors.
  CheckpointInfo loadParameters(Executor &executor, const ModelIdentity &model, int64_t step) const;
  static CheckpointInfo loadParameters(Executor &executor, const ModelIdentity &model, const std::string &dir);

  // For who writes a checkpoint: where it will be, whether there is room for it, and its end, which adds the manifest
  // and gives the folder its name. `files` have checksums.
  std::string pathOf(int64_t step) const;
  void requireSpace(int64_t bytes) const;
  void complete(AtomicDir &dir, const CheckpointInfo &info, const Module &planned,
                const std::map<std::string, std::string> &files) const;

  /// Steps of all checkpoints, newest first.
  std::vector<int64_t> steps() const;
  /// Removes what killed saves and removals left behind. Only for the holder of the run's lock.
  void cleanUp() const;

private:
  std::string folder;
};

/// Parameters from any folder or file of safetensors, or of several with an index as Hugging Face makes it: names with
/// or without a leading "transformer.", f32, bf16 or f16. Throws UserErrors FileMissing, CheckpointDamaged and
/// CheckpointMismatch: a missing tensor, another shape, a tensor for which the model has no place and without which the
/// weights would be another model's, or a checkpoint of CheckpointStore whose keys of [model] differ from `model`'s.
void loadWeights(Executor &executor, const std::string &path, const ModelIdentity &model);

}  // namespace gptc
