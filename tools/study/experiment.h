// experiment.toml: which runs an experiment has, and how long each of them trains.
//
//   model = "model.toml"             # beside this file
//   steps = 1000                     # or tokens = "10M", flops = 1e15 or seconds = 300; else the model's train.steps
//   seeds = [1, 2, 3]                # each run once with each, as train.seed
//   set = ["eval.every=100"]         # of all runs, as --set of `gptc compile`
//
//   [grid]                           # every combination, in this order, of which the last key changes fastest
//   optimizer.lr = [3e-4, 1e-3]
//   model.n_layer = [4, 6]
//
//   [[variant]]                      # or a list
//   name = "wide"
//   set = ["model.n_embd=256"]
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gptc {

/// How long each run trains. seconds: the wall clock of gptrun from its first logged step; the learning rate falls over
/// the model's train.steps, which are also the most steps. The others become train.steps, so that the learning rate
/// ends with the run.
struct Budget {
  enum class Kind { model, steps, tokens, flops, seconds } kind = Kind::model;
  double amount = 0;

  /// "steps 100"; "model" if there is none.
  std::string str() const;
  /// train.steps for this amount, rounded down, at least 1. `each`: what a step has of it.
  int64_t stepsFor(double each) const;
};

struct ExperimentRun {
  std::string name;     // its folder's; with a seed VARIANT,seed=N
  std::string variant;  // what runs that differ in the seed alone have in common
  std::optional<int64_t> seed;
  std::vector<std::string> settings;  // KEY=VALUE; paths are relative to the experiment's file
};

struct Experiment {
  std::string file;   // as given
  std::string hash;   // BLAKE3 of its text
  std::string model;  // absolute
  Budget budget;
  std::vector<ExperimentRun> runs;
};

/// Files of an experiment's folder, which no run may be named.
inline constexpr const char *kExperimentFile = "experiment.json";
inline constexpr const char *kResultsFile = "results.jsonl";

/// Runs beyond these have to be asked for; all are held in memory, so that there is an end.
inline constexpr int64_t kManyRuns = 1000, kMostRuns = 1'000'000;

/// Reads an experiment. Throws UserErrors, all at once, for keys that it does not have, settings of keys that a model
/// does not have, empty lists, and names that are twice there or no folder's; OutOfRange for more than `most` runs.
Experiment parseExperiment(const std::string &text, const std::string &file, int64_t most = kManyRuns);
Experiment readExperiment(const std::string &file, int64_t most = kManyRuns);

/// Why a run cannot have this name, "" if it can: it names a folder.
std::string problemOfRunName(std::string_view name);

}  // namespace gptc
