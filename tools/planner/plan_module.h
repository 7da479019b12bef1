// From a configuration to the module that a plan consists of: what the forecasts of tools/estimate run as well. Kernels
// and files come after it (tools/compiler/compile.h).
#pragma once

#include "passes/pass.h"
#include "runtime/plan/plan.h"
#include "runtime/tuning/tuned_schedules.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc {

struct Config;
enum class ConfigPurpose;

/// Reads the configuration as loadConfig does, with the vocabulary of its tokenizer file.
Config readConfig(const std::string &modelFile, const std::vector<std::string> &settings);
Config readConfig(const std::string &modelFile, const std::vector<std::string> &settings, ConfigPurpose purpose);

/// The same for commands that measure on the CPU: a module or another target is a UserError.
Config readConfigForBench(const std::string &modelFile, const std::vector<std::string> &settings);

/// What config.compile.target names; `here`: the GPU of this machine. UserError(TargetUnavailable, UnknownValue).
Target targetOf(const Config &config, bool &here);

/// The module that a plan of this configuration consists of: all passes, no kernels and no files. `available`: bytes
/// that it may take, for remat = "auto". Throws what they throw.
std::unique_ptr<Module> planModule(const Config &config, const Target &target, const std::string &cacheDir,
                                   int64_t available);

/// How runPasses() plans.
struct PassRequest {
  const char *first;     // pass of the default pipeline with which to begin
  std::string cacheDir;  // of tuning records
  bool tuned;            // schedules from there
  int64_t available;     // bytes: the budget of remat = "auto"
  PipelineOptions pipeline;
};

/// The default pipeline over plan.planned, for plan.target; plan.joint becomes a copy of what it was before fusion.
/// `gir`: the module comes from a file and not from `config`. Returns where schedules came from. UserError where
/// remat's budget cannot be kept.
TunedSchedules::Counts runPasses(Plan &plan, const Config &config, PassRequest request, bool gir);

}  // namespace gptc
