// The functions of a model: the graphs that frontends/model_builder.h describes, over states that exist.
#pragma once

#include "frontends/model_builder.h"

namespace gptc {

/// Adds the function `name` that returns negative log likelihoods: their sum, with dropout, if it is for training; else
/// one for each target.
void buildLoss(Module &m, const Config &config, const BuildOptions &options, const char *name, bool training);

/// The same of a model with labels, with one target for each sequence or, where several may be right, for each label;
/// of a regression squared errors. If it is not for training it returns the logits, too.
void buildLabelLoss(Module &m, const Config &config, const BuildOptions &options, const char *name, bool training);

/// Adds the function `name` that processes `count` tokens through the KV cache and returns the logits behind one of
/// them, with `picks` the one that an argument selects, and the token chosen by them.
void buildCached(Module &m, const Config &config, const BuildOptions &options, const char *name, int64_t count,
                 bool picks);

/// Adds @step_N for N = `tokens`, of which `chosen` get logits and a token chosen by them.
void buildStep(Module &m, const Config &config, const BuildOptions &options, int64_t tokens, int64_t chosen);

/// Adds @embed_N for N = `tokens`.
void buildEmbed(Module &m, const Config &config, const BuildOptions &options, int64_t tokens);

/// Adds @fill.
void buildFill(Module &m, const Config &config, const BuildOptions &options);

/// Adds @labels.
void buildLabels(Module &m, const Config &config, const BuildOptions &options);

/// Adds @score, which returns the logits behind each of its `tokens`.
void buildScore(Module &m, const Config &config, const BuildOptions &options, int64_t tokens);

}  // namespace gptc
