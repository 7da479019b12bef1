// The pages of docs/ that are generated, so that they cannot fall behind: a test compares them with what these return.
#pragma once

#include <string>

namespace gptc {

/// docs/ops.md: what every op takes, yields, means and costs, how it is differentiated, fused and shared out, as its
/// OpDef says. Printed by `gptc-opt --list-ops`.
std::string opsPage();
/// docs/errors.md: every code of support/errors.def. Printed by `gptc-opt --list-errors`.
std::string errorsPage();

}  // namespace gptc
