// Compiles a model with one decision changed, for `gptc explain` and `gptc bench ablate`.
#pragma once

#include "passes/analysis/cost.h"
#include "passes/pass.h"

#include <functional>
#include <memory>
#include <vector>

namespace gptc {

/// Runs the default pipeline from pass `from` on a copy of `m`. `edit` (may be empty) can change options of passes or
/// remove passes first. Does not verify between passes, because these passes made the plan.
std::unique_ptr<Module> runFrom(const Module &m, const char *from, const Target &target,
                                const std::function<void(std::vector<PassUse> &)> &edit = {});

/// Sets an option of every use of a pass.
void setOption(std::vector<PassUse> &uses, llvm::StringRef pass, const char *option, const Attr &value);
void removePass(std::vector<PassUse> &uses, llvm::StringRef pass);

/// Predicted needs of a planned module: arena in bytes, cost of a step.
struct Forecast {
  int64_t arena = 0;
  KernelCost step;
};
Forecast forecast(const Module &planned, const MachineRates &rates);

}  // namespace gptc
