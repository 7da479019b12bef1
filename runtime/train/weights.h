// Chooses the weights for sampling and evaluation.
#pragma once

#include "runtime/plan/plan.h"

#include <functional>
#include <string>

namespace gptc {

struct Session;

/// `--checkpoint STEP|best|DIR`.
struct WeightsChoice {
  enum Kind {
    newest,  // newest checkpoint of the run; if there is none, init_from's weights
    ofStep,
    best,      // the checkpoint with the lowest validation loss measured at its step
    inFolder,  // a checkpoint or other safetensors in any folder, or a GGUF file
    tensors    // the same by its tensors alone, whatever run wrote it: the context may be shorter
  } kind = newest;
  int64_t step = 0;
  std::string path;  // absolute

  /// Parses the argument of --checkpoint. Throws UserError(Usage, FileMissing).
  static WeightsChoice parse(const std::string &text);
};

/// Throws UserError(FileMissing), naming the steps that exist, if the run does not have them.
void requireWeights(const RunSettings &run, const WeightsChoice &choice);

/// Loads these weights, of a model that `model` describes, into the executor's parameters; other states keep their
/// initial values. Returns the folder or file, for messages. Throws the UserErrors of requireWeights and of
/// CheckpointStore::loadNewest.
std::string loadForInference(Session &session, const ModelIdentity &model, const WeightsChoice &choice,
                             const std::function<void(const std::string &)> &warn);

}  // namespace gptc
