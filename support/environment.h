// The variables of the environment that are gptc's own, GPTC_ANY. Those of others (HOME, CUDA_VISIBLE_DEVICES, a
// launcher's) are read where they are needed.
#pragma once

#include <string>
#include <vector>

namespace gptc {

/// The value of one of gptc's own variables, or null where it is not set. `name` is in the table of environment.cpp.
const char *ownVariable(const char *name);

/// A sentence about each variable of `environment` (as `environ` has them) that begins with GPTC_ and that no program
/// reads: which one may be meant. Those of tests are passed over.
std::vector<std::string> strangeVariables(const char *const *environment);

}  // namespace gptc
