// Measurements of schedules on disk: CACHE/tuning.jsonl, append-only, one line of JSON per trial.
//
// A record says: this schedule, for this problem, on this machine, took this time, with this emitted source. It holds
// numbers and no code, so records from elsewhere can be imported. A record is used only if the recipe's own space
// contains its schedule and the same source is still emitted; a record not made here only after its kernel has
// reproduced the default's bits on this machine. Records made here carry a mark: a hash of the record with the secret
// of the cache folder (cache_secret.h).
//
// Lines have a checksum and are appended under a lock in one write, so many processes may append at once. A kill leaves
// at most one incomplete line, which the next reader sets aside. A file that another user owns or can write is set
// aside as a whole. Lines of other format versions stay in the file but do not count.
#pragma once

#include "codegen/tuner/tuner.h"
#include "ir/kernel/schedule.h"

#include <string>
#include <vector>

namespace gptc {

struct TuningRecord {
  std::string problem;           // hash of the computation, including shapes
  std::string family;            // hash of the computation without shapes
  std::vector<int64_t> extents;  // of all shapes
  std::string name;              // for people: "matmul 1024x2304x768"
  std::string machine;           // fingerprintOf
  Schedule schedule;
  std::string source;  // Trial::source
  Trial::Outcome outcome = Trial::Outcome::timed;
  Timing time;  // if the outcome is `timed`
  double compileSeconds = 0;
  double raced = 0;            // time relative to the default's, measured alternately; 0: not in a race
  double noise = 0;            // relative noise of that race
  std::string session;         // id of the search; equal for its records, and sorts by time
  bool isDefault = false;      // its schedule is the default
  bool fromElsewhere = false;  // made elsewhere, bits not yet checked here
  /// Whether the schedule has failed on this machine.
  bool isWrong() const {
    return outcome != Trial::Outcome::timed && outcome != Trial::Outcome::suspect && !fromElsewhere;
  }
  bool operator==(const TuningRecord &) const = default;

  /// One line with checksum, without newline. With a `secret`, a record made here is marked as such.
  std::string str(llvm::StringRef secret = "") const;
  enum class Line { record, otherVersion, damaged };
  /// Parses a line. It is a record only if str() of this version could have written it, with all numbers in range;
  /// otherwise `why` gives the reason.
  static Line parse(llvm::StringRef line, TuningRecord &out, std::string &why, llvm::StringRef secret = "");
};

/// The record of one trial of a search.
TuningRecord recordOf(const TuningRecord &problem, const Trial &trial, const std::string &session);

/// What a time depends on besides the source: CPU model, instruction set, caches, threads and ranks; or this machine's
/// GPU, its driver and libraries. "" if the target's GPU is not in this machine.
std::string fingerprintOf(const Target &target);
/// A record with only the problem's fields set: hashes of a group, its extents, its name.
TuningRecord problemOf(const Op &fused, const Target &target);

class TuningRecords {
public:
  /// `dir`: the private cache folder ("": nothing is read or kept). Problems with the file are only warnings, on stderr
  /// and in `warnings`; `quiet` suppresses stderr.
  explicit TuningRecords(const std::string &dir, bool quiet = false);
  /// Reads all records of a file from elsewhere (export, import, merge); `damaged` gets the lines that are no records.
  /// Throws UserError(FileMissing) if it cannot be read.
  static std::vector<TuningRecord> readFile(const std::string &path, std::vector<std::string> &damaged);
  /// Writes records to a file, completely or not at all, or to a device (/dev/stdout). Throws UserError(Unwritable,
  /// DiskFull).
  static void writeFile(const std::string &path, llvm::ArrayRef<TuningRecord> records);

  llvm::ArrayRef<TuningRecord> all() const { return records; }
  /// Appends under the lock. If the disk is full or read-only, warns once; the records are then lost.
  void append(llvm::ArrayRef<TuningRecord> some);
  /// Appends to the file only. Throws UserError(Unwritable, DiskFull) if they cannot be kept, also if there is no file.
  void keep(llvm::ArrayRef<TuningRecord> some);
  /// Replaces the file's records under the lock. Keeps lines of other versions, and what others have appended since the
  /// file was read.
  void replace(std::vector<TuningRecord> all);

  /// keepGroup stores a problem, so that it can be computed without its model; groupOf returns it as a module with one
  /// function and one fused op, null if it is unknown.
  void keepGroup(const Op &fused, const Target &target) const;
  std::unique_ptr<Module> groupOf(llvm::StringRef problem, const Target &target) const;

  const std::string &path() const { return file; }
  /// Opens tuning.jsonl for appending; -1 if it cannot be opened.
  int openForAppending();
  const std::string &mark() const { return secret; }
  std::vector<std::string> warnings;

private:
  std::string dir, file, secret;
  std::vector<TuningRecord> records;
  std::string others;  // lines of other format versions
  const bool quiet;
  bool saidNotKept = false;
  void warn(std::string text);
  void load(bool locked);
  class Lock;
};

}  // namespace gptc
