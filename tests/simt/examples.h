// The groups of the examples' plans: what their kernels are made of.
#pragma once

#include "codegen/codegen.h"
#include "tests/support/recipe_harness.h"

#include <string>
#include <vector>

namespace gptc::test {

/// The names of examples/*.toml, in order.
std::vector<std::string> exampleNames();

/// An example with settings, through the default pipeline for a target as far as recipes are chosen. All functions of a
/// plan are in it: steps of training, evaluation, and those of sampling where the example is causal.
std::unique_ptr<Module> exampleForTarget(const std::string &name, std::vector<std::string> settings,
                                         const Target &target);

/// A group in a module of its own.
Group alone(const Op &fused);

}  // namespace gptc::test
