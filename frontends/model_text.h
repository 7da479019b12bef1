// The table [model] as a person would write it.
#pragma once

#include "ir/settings/settings.h"

#include <string>
#include <vector>

namespace gptc {

/// The keys of [model], without init_from, in the order of the table of settings: sizes, and what differs from the
/// defaults. One line each, `key = value`, and behind those that people change a comment. `context`: of what the model
/// is from, if that is longer than block_size.
std::string modelText(const ModelConfig &model, int64_t context = 0);

/// As a TOML basic string, with its quotes.
std::string tomlString(const std::string &text);

}  // namespace gptc
