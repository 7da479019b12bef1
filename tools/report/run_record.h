// What a run's folder (out_dir) tells of the run: log.jsonl (runtime/train/metrics.h), forecast.jsonl
// (tools/estimate/run_log.h), and the manifests of checkpoints (runtime/checkpoint/checkpoint.h).
#pragma once

#include "support/json.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gptc {

/// A value that log.jsonl has of some steps, by rising step; NaN where the log has null.
using LoggedValues = std::vector<std::pair<int64_t, double>>;

struct RunRecord {
  std::string folder;  // as given
  std::string name;    // for tables: the folder's own; valid UTF-8
  /// By their names in the log: "loss", "lr", "val_loss", "val_accuracy" ... A step that the log has twice has its last
  /// value.
  std::map<std::string, LoggedValues> values;
  std::string firstTime, lastTime;  // of the log's lines; "" if they have none
  /// Lines of forecast.jsonl, in their order: one for each process that ended well.
  std::vector<nlohmann::ordered_json> forecasts;
  struct Saved {
    int64_t step = 0;
    std::optional<double> valLoss;
  };
  std::vector<Saved> checkpoints;  // by rising step
  /// Keys and values as --set has them; of the plan that ran last, or, if no process has ended yet, of the newest
  /// checkpoint, which knows those of [model].
  std::map<std::string, std::string> settings;
  /// What was read is not all that was there: one sentence each.
  std::vector<std::string> notes;

  /// The values of this name; none if the log has none.
  const LoggedValues &of(const std::string &name) const;
  /// Tokens of a step; 0 if it is not known.
  double tokensPerStep() const;
};

/// Reads a run. Lines of the log that are none are counted in `notes`, as is a last line that is not complete. Throws
/// UserErrors FileMissing if the folder has no log, naming runs below it; TooLarge; and DataInvalid if the log has
/// lines, but none of a run.
RunRecord readRun(const std::string &folder);

/// Where two runs part.
struct Parting {
  int64_t common = 0;         // steps that both logs have
  std::optional<int64_t> at;  // the first of these with other values; nullopt: all are equal
  double a = 0, b = 0;        // there
  int64_t lastEqual = -1;     // the last common step before; -1 if there is none
};
/// Values that are not finite are equal to each other.
Parting partingOf(const LoggedValues &a, const LoggedValues &b);

/// Settings that are not the same in all runs, with the value of each run; "" where it is not known.
std::map<std::string, std::vector<std::string>> differencesOf(const std::vector<RunRecord> &runs);

}  // namespace gptc
