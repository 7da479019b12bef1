// The trials of a search, kept as they are made.
#pragma once

#include "runtime/tuning/tuning_records.h"

#include <map>

namespace gptc {

/// A search's trials go to the file one by one. While one is compiled or runs for the first time, a fault (SIGSEGV and
/// the like) writes a record that says so before the process ends, so that the next search leaves it out.
class RecordingLog : public TrialLog {
public:
  /// `again`: nothing of earlier searches counts but faults.
  RecordingLog(TuningRecords &records, TuningRecord problem, const std::string &session, bool again = false);
  ~RecordingLog() override;
  RecordingLog(const RecordingLog &) = delete;
  std::optional<Trial> find(const Trial &trial) override;
  void begin(llvm::ArrayRef<const Trial *> trials) override;
  void add(const Trial &trial) override;
  int known = 0, added = 0;

private:
  TuningRecords &records;
  const TuningRecord problem;
  const std::string session;
  std::map<std::pair<std::string, std::string>, Trial> before;  // by schedule and source
  int fd = -1;
};

}  // namespace gptc
