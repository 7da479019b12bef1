// What was measured about schedules, on disk: CACHE/tuning.jsonl, one line of JSON for each trial, append-only.
//
// A record says: this schedule, for this problem, on this machine, took so long, when this source was emitted for it.
// It holds sizes and times and no code, so that records from elsewhere may be taken over; what they propose is used
// only where the recipe's own space contains it, where the same source is still emitted, and, for records that were not
// made here, after its kernel has given the bits of the default's on this machine. Which ones were made here shows a
// mark: a hash of the record with the secret of the cache folder (cache_secret.h).
//
// Lines are appended under a lock in one write, each with a checksum: any number of processes may do so at once, and a
// kill leaves at most one line that is not whole, which the next reader sets aside. A file that another user owns or
// may write is set aside as a whole. Lines of another version of the format stay where they are and do not count.
#pragma once

#include "codegen/tuner/tuner.h"
#include "ir/kernel/schedule.h"

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
  std::string source;  // Trial::source
  Trial::Outcome outcome = Trial::Outcome::timed;
  Timing time;  // of timed ones
  double compileSeconds = 0;
  double raced = 0;     // time over that of the default, in turn with it; 0: was not in a race
  double noise = 0;     // of that race
  std::string session;  // of the search: the records of one belong together; later ones sort behind earlier ones
  bool isDefault = false;
  bool fromElsewhere = false;  // its bits have not been checked here
  /// Turned out not to be used, on this machine.
  bool isWrong() const {
    return outcome != Trial::Outcome::timed && outcome != Trial::Outcome::suspect && !fromElsewhere;
  }
  bool operator==(const TuningRecord &) const = default;

  /// One line, with its checksum, without a newline; with `secret` (""), marked as made here unless it is not.
  std::string str(llvm::StringRef secret = "") const;
  enum class Line { record, otherVersion, damaged };
  /// A record only where the line is one as str() writes it, of this version, with all numbers in range. Otherwise
  /// `why` says what is wrong.
  static Line parse(llvm::StringRef line, TuningRecord &out, std::string &why, llvm::StringRef secret = "");
};

/// What a search found, of a problem.
TuningRecord recordOf(const TuningRecord &problem, const Trial &trial, const std::string &session);

/// CPU model, instruction set, caches, threads; or the GPU here, its driver and libraries: what a time depends on
/// beside the source. "" for a GPU that is not here.
std::string fingerprintOf(const Target &target);
/// Hashes of a group, and its name for people.
TuningRecord problemOf(const Op &fused, const Target &target);

class TuningRecords {
public:
  /// `dir` is the private cache folder ("": nothing is read or kept). Problems with the file are warnings on stderr and
  /// never more: `quiet` keeps them in `warnings` alone.
  explicit TuningRecords(const std::string &dir, bool quiet = false);
  /// Reads all lines of a file from elsewhere (export, import, merge). UserError(FileMissing) where it cannot be read.
  /// Lines that are no records are told in `damaged`.
  static std::vector<TuningRecord> readFile(const std::string &path, std::vector<std::string> &damaged);
  /// Writes records to a file of their own, or to what is no file (/dev/stdout): UserError(Unwritable, DiskFull).
  static void writeFile(const std::string &path, llvm::ArrayRef<TuningRecord> records);

  llvm::ArrayRef<TuningRecord> all() const { return records; }
  /// Appends, under the lock. A full or read-only disk is a warning, once: the result of a search is then lost.
  void append(llvm::ArrayRef<TuningRecord> some);
  /// Likewise to the file alone. UserError(Unwritable, DiskFull) where they cannot be kept, be it none at all.
  void keep(llvm::ArrayRef<TuningRecord> some);
  /// Replaces the file by those records, under the lock; what others appended since it was read is kept, and so are
  /// lines of another version.
  void replace(std::vector<TuningRecord> all);

  /// Keeps what a problem is, so that it can be computed again without its model; and gives it back, as a module of one
  /// function of one fused op, null where it is not known.
  void keepGroup(const Op &fused, const Target &target) const;
  std::unique_ptr<Module> groupOf(llvm::StringRef problem, const Target &target) const;

  const std::string &path() const { return file; }
  /// tuning.jsonl open for appending; -1 where there is no folder for it.
  int openForAppending();
  const std::string &mark() const { return secret; }
  std::vector<std::string> warnings;

private:
  std::string dir, file, secret;
  std::vector<TuningRecord> records;
  std::string others;  // lines of other versions
  const bool quiet;
  bool saidNotKept = false;
  void warn(std::string text);
  void load(bool locked);
  class Lock;
};

}  // namespace gptc
