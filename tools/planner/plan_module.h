// Makes the module of a plan from a configuration; forecasts (tools/estimate) use it too. Kernels and files follow in
// tools/compiler/compile.h.
#pragma once

#include "frontends/model_builder.h"
#include "passes/pass.h"
#include "runtime/plan/plan.h"
#include "runtime/tuning/tuned_schedules.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc {

struct Config;
enum class ConfigPurpose;

/// Reads a configuration like loadConfig, with the vocabulary of its tokenizer file.
Config readConfig(const std::string &modelFile, const std::vector<std::string> &settings);
Config readConfig(const std::string &modelFile, const std::vector<std::string> &settings, ConfigPurpose purpose);

/// Compares imported weights, a folder or a GGUF file, with the [model] that `settings` say (Plan::model). Throws
/// UserError with each key that differs, and with what makes the description of the weights unusable.
void requireSameModel(const std::string &weights, const std::vector<std::string> &settings);

/// Throws UserError(NotBuiltYet) with `why` and what helps unless compile.target is the CPU.
void requireCpuTarget(const Config &config, const std::string &why, const std::string &help);

/// For commands that measure on the CPU: throws UserError for a module or another target.
Config readConfigForBench(const std::string &modelFile, const std::vector<std::string> &settings);

/// The target that config.compile.target names; `here`: set if it is this machine's GPU. Throws
/// UserError(TargetUnavailable, UnknownValue).
Target targetOf(const Config &config, bool &here);

/// Runs all passes for this configuration, without kernels and files. `available`: bytes that the plan may take, for
/// remat = "auto". Throws the UserErrors of the passes.
std::unique_ptr<Module> planModule(const Config &config, const Target &target, const std::string &cacheDir,
                                   int64_t available, const BuildOptions &build = {});

/// Options of runPasses().
struct PassRequest {
  const char *first;     // first pass of the default pipeline to run
  std::string cacheDir;  // with the tuning records
  bool tuned;            // take schedules from the records
  int64_t available;     // bytes; the budget of remat = "auto"
  PipelineOptions pipeline;
  /// Workspaces of products that a GPU may run side by side, as far as `available` allows: gradients of weights run
  /// beside those of inputs. More shorten the longest chain of a step by little.
  int64_t workspaces = 2;
  /// The target whose records count; null: the plan's.
  const Target *measured = nullptr;
};

/// Runs the default pipeline on plan.planned for plan.target; plan.joint becomes a copy from before fusion. `gir`: the
/// module comes from a file, not from `config`. Returns where schedules came from. Throws UserError if remat's budget
/// cannot be met.
TunedSchedules::Counts runPasses(Plan &plan, const Config &config, PassRequest request, bool gir);

}  // namespace gptc
