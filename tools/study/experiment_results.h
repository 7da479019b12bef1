// What the runs of an experiment came to: results.jsonl, intervals over seeds, and where two runs part.
#pragma once

#include "support/json.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct RunError {
  std::string code, message;  // code: "GPTC0204"; "" of a run that a signal ended
};

/// A run that has ended, by itself or by an error: a line of results.jsonl.
///
///   {"name", "variant", "seed", "settings": [...], "budget", "steps", "tokens", "loss", "val_loss", "val_step",
///    "tokens_per_s", "seconds", "exit", "status": "done" or "failed", "error": null or {"code", "message"},
///    "fingerprint"}
///
/// Unknown numbers are null. val_loss: the least; loss: the last; tokens_per_s: the median of those logged; seconds:
/// wall clock of gptrun in all parts of the run, each from its first logged step.
struct RunResult {
  std::string name, variant;
  std::optional<int64_t> seed;
  std::vector<std::string> settings;
  std::string budget;
  int64_t steps = 0, tokens = 0;
  double loss = NAN, valLoss = NAN;
  int64_t valStep = -1;
  double tokensPerSecond = NAN, seconds = 0;
  int exit = 0;  // of the program that ended it; 128 + the number of a signal
  bool failed = false;
  RunError error;
  std::string fingerprint;  // of what decides over the run; "" of a line without it

  nlohmann::ordered_json json() const;
  /// Throws a Json::exception for another form.
  static RunResult of(const nlohmann::json &j);
};

/// The lines of a results.jsonl; none if there is no such file. Throws UserError(DataInvalid) with the number of a line
/// that is none.
std::vector<RunResult> readResults(const std::string &file);
/// Replaces the file in one step.
void writeResults(const std::string &file, const std::vector<RunResult> &results);

/// Puts what OUT_DIR/log.jsonl says into a result: steps, losses, speed.
void addLog(const std::string &outDir, RunResult &result);

/// The first error that a program has printed, as support/diagnostics.h prints it.
std::optional<RunError> errorIn(const std::string &output);

/// The loss that `gptrun eval` has printed; nullopt if it has printed none.
std::optional<double> valLossIn(const std::string &output);

/// Student's t: the half of an interval that holds `share` of its distribution.
double studentT(int freedom, double share = 0.95);

/// The mean over the runs of a variant, and its 95% confidence interval by Student's t with n - 1 degrees of freedom,
/// as of independent values that are normally distributed.
struct SeedStatistics {
  std::string variant;
  std::vector<double> values;
  double mean = NAN;
  double halfWidth = NAN;  // of one value there is no interval
  int64_t without = 0;     // runs that failed, or have no finite validation loss

  /// Least mean first; variants with runs without a value stand last.
  static std::vector<SeedStatistics> of(const std::vector<RunResult> &results);
};
SeedStatistics statisticsOf(std::string variant, std::vector<double> values);

/// The first step that both runs have logged with losses whose bits differ.
struct FirstDifference {
  int64_t shared = 0, last = -1;  // steps that both have logged, and the last of them
  int64_t step = -1;              // -1: no shared step differs
  float first = NAN, second = NAN;
};
/// Of the logs in two out_dirs. Throws UserError: FileMissing for a folder without a log, DataInvalid for two that
/// share no step.
FirstDifference compareRuns(const std::string &first, const std::string &second);

/// Best validation loss first, then those without by their last loss, then those that have none.
void sortByLoss(std::vector<RunResult> &results);

}  // namespace gptc
