// Compiles a model file to a plan folder: the work of `gptc compile`, also for tests and other programs.
#pragma once

#include "runtime/cuda/library_tuner.h"
#include "tools/planner/micro_batch.h"
#include "tools/planner/plan_module.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct Config;

struct CompileRequest {
  std::string modelFile;
  std::vector<std::string> settings;  // key=value
  std::string planDir;                // "": NAME.plan in the working folder
  std::string cacheDir;               // for compiled kernels; "": none
  std::string clusterFile;            // machines for which "auto" is decided; "": see tools/estimate/auto.h
  int64_t ranksPerNode = 0;           // ranks that share a machine's CPUs; 0: all of the plan
  bool byRank = false;                // this process is one of them and has its share of the CPUs
  PipelineOptions pipeline;
  std::optional<RunSettings> run;  // replaces the configuration's
  std::optional<HfFiles> hf;       // replaces those made of the configuration and its tokenizer
};

struct CompileReport {
  std::string planDir;
  int64_t arenaBytes = 0;
  int64_t hostBytes = 0;                   // of the host's arena, if the plan has one
  int64_t available = 0;                   // bytes of this machine's memory for plans: the budget of remat = "auto"
  int groups = 0;                          // fused ops in all functions
  int compiled = 0, reused = 0;            // distinct kernels, by whether the cache had them
  cuda::LibraryTuning tuning;              // if the plan calls cuBLASLt
  std::optional<MicroBatchChoice> micro;   // if it was open, for a GPU of known memory
  TunedSchedules::Counts tuned;            // origin of the schedules
  std::vector<std::string> noFamilyHolds;  // HfDescription::differing
  std::string tokenizerProblem;            // HfFolder::tokenizerProblem
  double passSeconds = 0, kernelSeconds = 0, totalSeconds = 0;
};

/// The run settings of a plan; paths are absolute.
RunSettings runSettings(const Config &config);

/// A plan for another number of ranks, derived from the model description in a plan: same run, data and paths. The
/// global batch stays; the micro-batch shrinks if its share would not be an integer.
class PlanForRanks {
public:
  /// Plans nothing yet. `ranksPerNode`: how many of them a machine has; 0: all. Throws UserError for a plan made from a
  /// module, and if batch, model or reduce order do not allow this number of ranks.
  PlanForRanks(const Plan &plan, int64_t ranks, int64_t ranksPerNode = 0);
  /// Whether `dir` holds what write() would make, apart from schedules measured since.
  bool isIn(const std::string &dir) const;
  /// For one of the ranks to call.
  void write(const std::string &dir, const std::string &cacheDir) const;
  /// Its module for sampling and evaluation: for this target and without a memory limit. `tensor`: ranks that share
  /// heads and hidden features, in place of the plan's. Throws the UserErrors of a configuration that cannot be shared
  /// so.
  std::unique_ptr<Module> planForInference(const Target &target, const std::string &cacheDir,
                                           const BuildOptions &build = {}, int64_t tensor = 1) const;
  /// Throws these.
  void requireShared(int64_t tensor) const;

private:
  std::vector<std::string> settingsFor(int64_t tensor) const;
  CompileRequest request;
  std::string madeFrom;
};

/// Compiles a model and writes its plan. Also compiles the kernels, so that errors show now and the cache is filled.
/// `config` and `plan` receive what was read and made. Throws UserError.
CompileReport compilePlan(const CompileRequest &request, Config &config, Plan &plan);

}  // namespace gptc
