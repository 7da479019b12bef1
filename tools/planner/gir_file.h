// Reads modules in text form as input of the programs.
#pragma once

#include "frontends/toml_config.h"
#include "ir/graph.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc {

bool isGirFile(const std::string &path);

/// Parses and verifies a module, including kinds of groups and module attributes; "-" is standard input. Throws
/// UserError(FileMissing, GirSyntax, GirInvalid).
std::unique_ptr<Module> loadGir(const std::string &path);

/// The first pass of the default pipeline that a training module still needs: it may come from import (it has
/// @forward), be joint (forward, backward and optimizer) or fused (groups). Throws UserError(GirInvalid) for any other
/// module.
const char *firstPassFor(const Module &m, const std::string &path);

/// How to run such a module: `settings` (key=value) and defaults. Throws UserError(Usage) for a setting that the module
/// itself defines (sizes, batch, learning rate, steps).
Config configOfGir(const Module &m, const std::string &path, const std::vector<std::string> &settings);

}  // namespace gptc
