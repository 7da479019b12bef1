// Records the trials of a search as they are made.
#pragma once

#include "runtime/tuning/tuning_records.h"

#include <map>

namespace gptc {

/// Appends each trial of a search to the records. If a fault (SIGSEGV and the like) occurs while a candidate is
/// compiled or first run, a record of it is written before the process ends, so that the next search skips it.
class RecordingLog : public TrialLog {
public:
  /// `again`: ignore the results of earlier searches, except faults.
  RecordingLog(TuningRecords &records, TuningRecord problem, const std::string &session, bool again = false);
  ~RecordingLog() override;
  RecordingLog(const RecordingLog &) = delete;
  std::optional<Trial> find(const Trial &trial) override;
  void begin(llvm::ArrayRef<const Trial *> trials) override;
  void add(const Trial &trial) override;
  /// Trials found on record, and trials added.
  int known = 0, added = 0;

private:
  TuningRecords &records;
  const TuningRecord problem;
  const std::string session;
  std::map<std::pair<std::string, std::string>, Trial> before;  // by schedule and source
  int fd = -1;
};

}  // namespace gptc
