// Groups of parameters, [[optimizer.group]], selected by patterns on their names, with settings of their own; and those
// that precision.eight_bits selects.
//
// A name is the state's: Hugging Face's GPT-2 name without the leading "transformer.", such as "wte.weight" or
// "h.0.attn.c_attn.bias". In a pattern, `*` matches any text and `?` one character. A parameter belongs to the last
// group that matches it, or to none.
#pragma once

#include "frontends/toml_config.h"
#include "ir/graph.h"

namespace gptc {

/// Whether the pattern matches all of `name`.
bool matchesPattern(llvm::StringRef pattern, llvm::StringRef name);

/// Sets the attributes of each parameter of `m` from its group (ir/graph.h, State). Throws UserErrors together:
/// UnknownValue for a pattern without a match; Contradiction for a group whose parameters all belong to later groups,
/// or if all parameters are frozen.
void applyGroups(const Config &config, Module &m);

/// Multiplies the lr_scale of parameters by optimizer.layer_decay to the power of the layers above them: 0 of what is
/// behind the last layer, 1 of the last layer, ..., n_layer + 1 of embeddings (layer-wise learning rates as in ELECTRA,
/// Clark et al. 2020). To be called behind applyGroups.
void applyLayerDecay(const Config &config, Module &m);

/// Marks the matrices of layers that precision.eight_bits matches (StateFacts::eightBits). Throws UserErrors together:
/// UnknownValue for a pattern that matches none.
void applyEightBits(const Config &config, Module &m);

/// One line per group and one for parameters in no group, as `gptc compile` prints them, and one for layer_decay; empty
/// without both.
std::vector<std::string> describeGroups(const Config &config, const Module &m);

}  // namespace gptc
