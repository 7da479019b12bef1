// The options that say how a model of a Hugging Face folder or a GGUF file runs, of every command that takes one.
#pragma once

#include "tools/commands/command_line.h"
#include "tools/compiler/imported_model.h"

#include <vector>

namespace gptc {

/// Adds --context, --precision and --weights, and returns them.
std::vector<Option> addRunAsOptions(Command command, RunAs &as);

/// Adds --cache, for commands that continue texts, and returns it.
Option addCacheOption(Command command, RunAs &as);

}  // namespace gptc
