// The same model, compiled with one decision taken otherwise: for `gptc explain` and `gptc bench ablate`.
#pragma once

#include "passes/analysis/cost.h"
#include "passes/pass.h"

#include <functional>
#include <memory>
#include <vector>

namespace gptc {

/// Runs the default pipeline from pass `from` to its end on a copy of `m`, after `edit` (may be empty) has changed the
/// options of passes or taken some out. Without the verifier between passes: they are those that made the plan.
std::unique_ptr<Module> runFrom(const Module &m, const char *from, const Target &target,
                                const std::function<void(std::vector<PassUse> &)> &edit = {});

/// Sets an option of every use of a pass.
void setOption(std::vector<PassUse> &uses, llvm::StringRef pass, const char *option, Attr value);
void removePass(std::vector<PassUse> &uses, llvm::StringRef pass);

/// What a planned module is predicted to need.
struct Forecast {
  int64_t arena = 0;
  KernelCost step;
};
Forecast forecast(const Module &planned, const MachineRates &rates);

}  // namespace gptc
