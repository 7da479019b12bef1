// What was measured about schedules, on disk: CACHE/tuning.jsonl, one line of JSON for each trial, append-only.
//
// A record says: this schedule, for this problem, on this machine, took so long, when this source was emitted for it.
// It holds sizes and times and no code, so that records from elsewhere may be imported; what they propose is taken only
// where the recipe's own space contains it, where the same source is still emitted, and, for records from elsewhere,
// after its kernel has given the bits of the default's on this machine.
//
// Lines are appended under a lock in one write, each with a checksum: any number of processes may do so at once, and a
// kill leaves at most one line that is not whole, which the next reader sets aside. A file that another user owns or
// may write is set aside as a whole.
#pragma once

#include "codegen/tuner.h"
#include "ir/schedule.h"

#include <string>
#include <vector>

namespace gptc {

struct TuningRecord {
  std::string problem;           // hash of what is to be computed, shapes included
  std::string family;            // hash of the same without shapes
  std::vector<int64_t> extents;  // of the shapes
  std::string name;              // for people: "matmul 1024x2304x768"
  std::string machine;           // fingerprintOf
  Schedule schedule;
  std::string source;  // Jit::sources of its kernel
  Timing time;
  double compileSeconds = 0;
  double raced = 0;     // time over that of the default, in turn with it; 0: was not in a race
  double noise = 0;     // of that race
  std::string session;  // of the search: the records of one belong together; later ones sort behind earlier ones
  bool isDefault = false;
  bool fromElsewhere = false;  // imported, and its bits not yet checked here
  bool operator==(const TuningRecord &) const = default;

  std::string str() const;  // one line, with its checksum, without a newline
  /// Null and the reason where the line is no record: damaged, another version, numbers out of range.
  static std::optional<TuningRecord> parse(llvm::StringRef line, std::string &why);
};

/// CPU model, instruction set, caches, threads and LLVM: what a time depends on beside the source.
std::string fingerprintOf(const Target &target);
/// Hashes of a group, and its name for people.
TuningRecord problemOf(const Op &fused, const Target &target);

class TuningRecords {
public:
  /// `dir` is the private cache folder ("": nothing is read or kept). Problems with the file are warnings on stderr and
  /// never more: `quiet` keeps them in `warnings` alone.
  explicit TuningRecords(const std::string &dir, bool quiet = false);
  /// Reads all lines of a file from elsewhere (export, import, merge). UserError(FileMissing) where it cannot be read.
  static std::vector<TuningRecord> readFile(const std::string &path, std::vector<std::string> &damaged);
  /// Writes records to a file of their own: UserError(Unwritable, DiskFull).
  static void writeFile(const std::string &path, llvm::ArrayRef<TuningRecord> records);

  llvm::ArrayRef<TuningRecord> all() const { return records; }
  /// Appends, under the lock. A full or read-only disk is a warning: the result of a search is then lost.
  void append(llvm::ArrayRef<TuningRecord> some);
  /// Replaces the file by those records, under the lock; what others appended since it was read is kept.
  void replace(std::vector<TuningRecord> all);

  const std::string &path() const { return file; }
  std::vector<std::string> warnings;

private:
  std::string dir, file;
  std::vector<TuningRecord> records;
  const bool quiet;
  void warn(std::string text);
  void load();
  class Lock;
};

/// What counts of a problem's records on a machine: those of its last race, the fastest first. The default is one of
/// them.
std::vector<const TuningRecord *> lastRace(const TuningRecords &records, llvm::StringRef problem,
                                           llvm::StringRef machine);

/// Chooses schedules from records: the winner of a problem's last race; else that of the nearest shape of its family;
/// else the default.
class TunedSchedules : public ScheduleSource {
public:
  /// Records from elsewhere are checked on `pool`; null: one of its own, made when there is something to check.
  TunedSchedules(TuningRecords &records, const Target &target, ThreadPool *pool = nullptr);
  std::optional<Schedule> find(const Op &fused, const Target &target) override;

  struct Counts {
    int exact = 0, nearest = 0, none = 0;
    int stale = 0;     // records whose kernel is emitted otherwise today
    int rejected = 0;  // schedules that are none of their recipe's space, or give other bits
    int checked = 0;   // records from elsewhere, checked here
  } counts;

private:
  TuningRecords &records;
  const std::string machine;
  ThreadPool *pool;
  std::unique_ptr<ThreadPool> own;
  Jit jit;

  bool trusted(const TuningRecord &r, const Op &fused, const Target &target);
  std::optional<Schedule> nearest(const TuningRecord &problem, const std::vector<Schedule> &space) const;
};

}  // namespace gptc
