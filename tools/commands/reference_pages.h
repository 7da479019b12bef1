// Generates pages of docs/ from the code; a test checks that the pages in docs/ are current.
#pragma once

#include <string>

namespace gptc {

/// docs/ops.md: operands, results, meaning, cost, gradient, fusion and sharding of every op, from its OpDef, and the
/// attributes of modules, functions and states (ir/facts.def). Printed by `gptc-opt --list-ops`.
std::string opsPage();
/// docs/errors.md: every code of support/errors.def. Printed by `gptc-opt --list-errors`.
std::string errorsPage();

}  // namespace gptc
