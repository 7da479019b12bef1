// The commands of gptrun that read a model without its training: one process, on one device.
#pragma once

#include "tools/run/run_options.h"

namespace gptc {

/// `gptrun sample`, `serve`, `embed` and `classify`. Throw the UserErrors of planOf, importedModel and loadWeights, and
/// those of the commands (tools/serve).
void runSample(RunOptions o);
void runServe(RunOptions o);
void runEmbed(RunOptions o);
void runClassify(RunOptions o);
/// `gptrun eval`.
void runEval(RunOptions o);

}  // namespace gptc
