// The functions of a model: the graphs that frontends/model_builder.h describes, over states that exist.
#pragma once

#include "frontends/model_builder.h"

namespace gptc {

/// Adds the function `name` that returns negative log likelihoods: their sum, with dropout, if it is for training; else
/// one for each target.
void buildLoss(Module &m, const Config &config, const BuildOptions &options, const char *name, bool training);

/// Adds the function `name` that processes `count` tokens through the KV cache and returns the logits behind one of
/// them, with `picks` the one that an argument selects, and the token chosen by them.
void buildCached(Module &m, const Config &config, const BuildOptions &options, const char *name, int64_t count,
                 bool picks);

}  // namespace gptc
