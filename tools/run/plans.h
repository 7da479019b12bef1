// The plan that a command of gptrun runs, and where it may write.
#pragma once

#include "runtime/plan/plan.h"
#include "tools/run/run_options.h"

#include <string>

namespace gptc {

/// Loads the plan that the command line names, with its --out-dir, and compares the weights that the run begins with.
/// Throws the UserErrors of loadPlan and requireSameModel; Usage for a model of another program; FileMissing for a plan
/// that cannot train, if it is to.
Plan planOf(const RunOptions &o, bool trains = false);

/// Why the plan's output folder is refused, "" if it is not: a foreign plan may name another run's folder, to continue
/// that run and remove its checkpoints. Accepted if this user compiled the plan or named the folder, or if it is below
/// the working folder.
std::string problemOfFolder(const RunOptions &o, const Plan &plan);
/// Throws UserError(Usage) if it is refused.
void requireFolder(const RunOptions &o, const Plan &plan);

}  // namespace gptc
