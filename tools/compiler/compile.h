// From a model file to a plan folder: what `gptc compile` does, for tests and programs.
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
  std::string cacheDir;               // compiled kernels; "": none
  std::string clusterFile;            // of the machines for which "auto" is decided; "": see tools/estimate/auto.h
  PipelineOptions pipeline;
  std::optional<RunSettings> run;  // instead of what the configuration says
};

struct CompileReport {
  std::string planDir;
  int64_t arenaBytes = 0;
  int64_t hostBytes = 0;                  // of the host's arena, where there is one beside the GPU's
  int64_t available = 0;                  // bytes of this machine that plans may take: the budget of remat = "auto"
  int groups = 0;                         // fused ops of all functions
  int compiled = 0, reused = 0;           // distinct kernels, by whether the cache had them
  cuda::LibraryTuning tuning;             // where the plan calls cuBLASLt
  std::optional<MicroBatchChoice> micro;  // where it was left open, for a GPU whose memory is known
  TunedSchedules::Counts tuned;           // where schedules came from
  double passSeconds = 0, kernelSeconds = 0, totalSeconds = 0;
};

/// What a plan holds beside the graph; paths absolute.
RunSettings runSettings(const Config &config);

/// A plan for another number of ranks, made from the model description that it holds: the same run, data and paths. The
/// global batch stays; the micro-batch shrinks where its share would not be whole.
class Partition {
public:
  /// Plans nothing yet. UserError for a plan from a module, and for ranks that batch, model or order do not divide by.
  Partition(const Plan &plan, int64_t ranks);
  /// Whether `dir` holds what write() would make, but for schedules that have been measured since.
  bool isIn(const std::string &dir) const;
  void write(const std::string &dir, const std::string &cacheDir) const;
  /// Its module for who trains nothing with it: for this target, as if memory had no limits.
  std::unique_ptr<Module> planForInference(const Target &target, const std::string &cacheDir) const;

private:
  CompileRequest request;
  std::string madeFrom;
};

/// Compiles and writes the plan. Kernels are compiled as well, so that mistakes show now and the cache is warm.
/// `config` receives what was read. Throws UserError.
CompileReport compilePlan(const CompileRequest &request, Config &config, Plan &plan);

}  // namespace gptc
