// The environment variables of gptc, whose names begin with GPTC_. Variables of other programs (HOME,
// CUDA_VISIBLE_DEVICES, a launcher's) are read where they are used.
#pragma once

#include <string>
#include <vector>

namespace gptc {

/// The value of a variable of gptc; null if it is not set. `name` must be in the table of environment.cpp (else
/// InternalError).
const char *ownVariable(const char *name);

/// One warning for each variable of `environment` (in the format of `environ`) whose name begins with GPTC_ and that no
/// program reads; it names the nearest known variable. Variables of the tests get no warning.
std::vector<std::string> strangeVariables(const char *const *environment);

}  // namespace gptc
