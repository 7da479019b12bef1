#include "tools/run/plans.h"

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/train/weights.h"
#include "runtime/tuning/cache_secret.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "tools/compiler/compile.h"
#include "tools/planner/cache_dir.h"

#include "llvm/ADT/StringRef.h"

#include <filesystem>

namespace gptc {

/// Compares imported weights, from which this run begins or which it evaluates, with the plan: they may have arrived
/// after it was made.
static void requireOwnModel(const RunOptions &o, const Plan &plan) {
  std::string weights;
  if (o.checkpoint) {
    weights = WeightsChoice::parse(*o.checkpoint).path;
  } else if (o.resume == "never" || CheckpointStore(plan.run.outDir).steps().empty()) {
    weights = llvm::StringRef(plan.run.initFrom).split(':').second.str();
  }
  if (weights.empty() || plan.model.empty())
    return;
  requireSameModel(weights, plan.model);
}

std::string problemOfFolder(const RunOptions &o, const Plan &plan) {
  std::error_code e;
  const std::string here = std::filesystem::current_path(e).string(), &out = plan.run.outDir;
  if (!o.outDir.empty() || plan.madeHere)
    return "";
  if (!liesWithin(out, here))
    return fmt::format("its out_dir {} leads out of the working folder {}", out, here);
  if (const std::string link = linkOutOf(out, here); !link.empty())
    return fmt::format("in its out_dir the link {} leads out of the working folder", link);
  return "";
}

void requireFolder(const RunOptions &o, const Plan &plan) {
  if (const std::string problem = problemOfFolder(o, plan); !problem.empty())
    throw UserError(ErrorCode::Usage,
                    fmt::format("the plan {} was not compiled with the cache of this user, and {}", o.plan, problem),
                    "say where the run is: --out-dir DIR; or compile the plan here, with the cache that gptrun finds");
}

Plan planOf(const RunOptions &o, bool trains) {
  if (isImportable(o.plan))
    throw UserError(ErrorCode::Usage, fmt::format("{} is a model, not a plan", o.plan),
                    fmt::format("`gptc import {}`, then `gptc compile model.toml`; `gptrun sample`, `serve`, `embed` "
                                "and `eval` take it as it is",
                                o.plan));
  Plan plan = loadPlan(o.plan, cacheSecret(defaultCacheDir()));
  if (trains && plan.run.trainData.empty())  // a plan from a .gir names none
    throw UserError(ErrorCode::FileMissing, "the plan names no training data",
                    "compile again with --set data.train=FILE; `gptc data prepare` makes one from text");
  if (!o.outDir.empty())
    plan.run.outDir = absolutePath(o.outDir);
  requireOwnModel(o, plan);
  return plan;
}

}  // namespace gptc
