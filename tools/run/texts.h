// The commands of gptrun that read a model without its training.
#pragma once

#include "tools/run/run_options.h"

namespace gptc {

/// `gptrun sample` and `serve`, on one rank or on several that share the model: with a launcher's variables, this
/// process is one of them. Return an exit code. Throw the UserErrors of planOf, importedModel, loadWeights,
/// chooseRanks, requireShared and launch(), and those of the commands (tools/serve).
int runSample(RunOptions o);
int runServe(RunOptions o);
/// `gptrun embed`, `classify` and `fill-mask`, in one process on one device. Throw the UserErrors of planOf,
/// importedModel and loadWeights, and those of the commands (tools/serve).
void runEmbed(RunOptions o);
void runClassify(RunOptions o);
void runFillMask(RunOptions o);
/// `gptrun eval`.
void runEval(RunOptions o);

}  // namespace gptc
