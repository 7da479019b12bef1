// Checkpoints: OUT_DIR/checkpoints/step-00001000/ with
//
//   model.safetensors      parameters, under Hugging Face's names and in its layouts (runtime/file_layout.h)
//   optimizer.safetensors  moments (m.NAME, v.NAME), step and other counters
//   manifest.json          step, BLAKE3 of both files and of itself, hashes of plan, model and training data
//
// A checkpoint appears whole or not at all: written to a temporary folder, every file and folder fsynced, renamed. A
// failed save throws (DiskFull, Unwritable), leaves no temporary folder and touches no older checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

class Executor;

struct CheckpointInfo {
  int64_t step = 0;
  std::string planHash, modelHash, dataFingerprint;
  std::string dir;  // set by load
};

class CheckpointStore {
public:
  explicit CheckpointStore(const std::string &outDir);

  /// Saves all states but caches, gradients and low copies.
  void save(const Executor &executor, const CheckpointInfo &info) const;
  /// Renames checkpoints beyond `step`, which loading passed over, to damaged-step-N: they are not to be counted among
  /// the newest, nor tried again.
  void setAsideBeyond(int64_t step) const;
  /// Removes all but the `keep` newest.
  void prune(int64_t keep) const;

  /// Loads the newest checkpoint that is whole into the executor's states, telling `warn` of each damaged one passed
  /// over; nullopt where there is none at all. `parametersOnly` leaves other states alone. UserErrors:
  /// CheckpointMismatch for one of another model, CheckpointDamaged when there are checkpoints and none is whole.
  std::optional<CheckpointInfo> loadNewest(Executor &executor, const std::string &modelHash, bool parametersOnly,
                                           const std::function<void(const std::string &)> &warn) const;

  /// Steps of all checkpoints, newest first.
  std::vector<int64_t> steps() const;
  /// Removes what killed saves and removals left behind. Only for the holder of the run's lock.
  void cleanUp() const;

private:
  std::string folder;
};

/// Parameters from any folder or file of safetensors: names with or without a leading "transformer.", f32, bf16 or f16.
/// Throws UserErrors FileMissing, CheckpointDamaged and CheckpointMismatch: a missing tensor, another shape, or a
/// tensor for which the model has no place and without which the weights would be another model's.
void loadWeights(Executor &executor, const std::string &path);

}  // namespace gptc
