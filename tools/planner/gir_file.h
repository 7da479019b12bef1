// Modules in text form, as input of the programs.
#pragma once

#include "frontends/toml_config.h"
#include "ir/graph.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc {

bool isGirFile(const std::string &path);

/// Parses and verifies, kinds of groups and attributes of the module included; "-" is standard input.
/// UserError(FileMissing, GirSyntax, GirInvalid).
std::unique_ptr<Module> loadGir(const std::string &path);

/// The first pass of the default pipeline that a training module still needs: from import (it has @forward), joint
/// (forward, backward and optimizer) or fused (groups). UserError(GirInvalid) where it is none of them.
const char *firstPassFor(const Module &m, const std::string &path);

/// How to run such a module: `settings` (key=value) and defaults. What the module says itself (sizes, batch, learning
/// rate, steps) cannot be set: UserError(Usage).
Config configOfGir(const Module &m, const std::string &path, const std::vector<std::string> &settings);

}  // namespace gptc
