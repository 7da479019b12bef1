// Which weights sampling and evaluation use.
#pragma once

#include "runtime/plan/plan.h"

#include <functional>
#include <string>

namespace gptc {

struct Session;

/// `--checkpoint STEP|best|DIR`.
struct WeightsChoice {
  enum Kind {
    newest,  // checkpoint of the run, or init_from's weights where there is none
    ofStep,
    best,     // by the validation loss that was measured at its step
    inFolder  // a checkpoint, or other safetensors, wherever that is
  } kind = newest;
  int64_t step = 0;
  std::string path;  // absolute

  /// What was written behind --checkpoint. UserError(Usage, FileMissing).
  static WeightsChoice parse(const std::string &text);
};

/// Whether the run has them: UserError(FileMissing), which names the steps that there are.
void requireWeights(const RunSettings &run, const WeightsChoice &choice);

/// Gives the executor's parameters these weights, of a model that `model` describes; its other states stay as they are
/// in the beginning. Returns a folder or file, for people. UserErrors: those of requireWeights and of
/// CheckpointStore::loadNewest.
std::string loadForInference(Session &session, const ModelIdentity &model, const WeightsChoice &choice,
                             const std::function<void(const std::string &)> &warn);

}  // namespace gptc
