// Groups of parameters, [[optimizer.group]]: which they are, by patterns on their names, and what holds for them alone.
//
// A name is that of the state: Hugging Face's of GPT-2 without the leading "transformer.", such as "wte.weight" or
// "h.0.attn.c_attn.bias". In a pattern `*` stands for any text and `?` for one character. A parameter belongs to the
// last group that matches it, or to none.
#pragma once

#include "frontends/toml_config.h"
#include "ir/graph.h"

namespace gptc {

/// Whether the whole of `name` is as the pattern says.
bool matchesPattern(llvm::StringRef pattern, llvm::StringRef name);

/// Writes to each parameter of `m` what its group says (ir/graph.h, State). UserErrors, all of them together:
/// UnknownValue for a pattern that matches nothing, Contradiction for a group that later ones leave nothing to, or
/// where every parameter is frozen.
void applyGroups(const Config &config, Module &m);

/// One line for each group and one for the parameters in none, as `gptc compile` prints them; none without groups.
std::vector<std::string> describeGroups(const Config &config, const Module &m);

}  // namespace gptc
