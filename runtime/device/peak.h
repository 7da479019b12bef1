// What MFU is a share of. A machine's peak is measured once and kept in the private cache: whatever else runs there at
// the time of one start, shares of one machine are shares of one number.
#pragma once

#include "codegen/codegen.h"
#include "support/thread_pool.h"

#include <functional>
#include <optional>
#include <string>

namespace gptc {

struct Peak {
  double flops = 0;  // FLOP/s; 0: there is no way to measure it
  std::string date;  // of the measurement, UTC: "2026-11-23"
};

/// A peak in the private cache.
///
///   1. Where there is none, attempts are made until three agree within 2%, or eight have been made: whatever else runs
///      on the machine makes an attempt too low and never too high. The greatest counts.
///   2. What is measured again replaces the record only where it is greater.
/// A cache that cannot be read or written costs the time of measuring each time, and nothing else.
class PeakRecord {
public:
  /// `cacheDir` "" for none. `what`: all that the peak depends on: device, its libraries, type, kernel. `attempt`:
  /// FLOP/s of one measurement, or 0. `by`: what is measured, where people should know: "cuBLASLt's product".
  PeakRecord(std::string cacheDir, std::string what, std::function<double()> attempt, std::string by = "")
      : by(std::move(by)), cacheDir(std::move(cacheDir)), what(std::move(what)), attempt(std::move(attempt)) {}
  const std::string by;
  /// That on record, else measured now.
  Peak get() const;
  /// Measured now in any case; the greater of it and that on record.
  Peak again() const;

private:
  std::string key() const;
  std::optional<Peak> known() const;
  std::string cacheDir, what;
  std::function<double()> attempt;
};

/// That of this machine's CPU, with all threads of the pool, by the loop of codegen/cpu/peak.h. The pool must outlive
/// it.
PeakRecord peakOfCpu(ThreadPool &pool, const Target &host, DType operands, const std::string &cacheDir);

/// A peak that somebody else has published.
struct SheetPeak {
  double flops = 0;  // 0: none is known
  std::string of;    // "NVIDIA H200"
};

/// Shares of the peak for a run: of a number that the user gives, else of a data sheet's, else of the measured one.
class Utilization {
public:
  /// `given`: FLOP/s that the user says; 0: none; below 0: the measured peak is wanted, whatever the data sheet says.
  /// `compute`: "bf16", for the texts. Measures where that is needed and not on record.
  Utilization(double given, SheetPeak sheet, PeakRecord record, std::string compute);

  /// What shares are of: "given", "sheet", "measured"; "" where nothing is known.
  const char *of() const;
  /// One line for the start of a run; "" where the user has given the number, or nothing is known.
  std::string describe() const;

  struct Shares {
    double mfu;       // of what of() says; NaN where nothing is known
    double measured;  // of the measured peak where that is another one, else NaN
  };
  /// Of so many FLOP/s of one device. None is above 1 without a word on why: a measured peak that a run exceeds was too
  /// low, and is measured again, three times at most; what is still above 1 afterwards is explained once.
  Shares at(double flopsPerSecond, const std::function<void(const std::string &)> &say);

private:
  double peak() const;
  double given;
  SheetPeak sheet;
  PeakRecord record;
  std::string compute;
  Peak measured;
  int remeasured = 0;
  bool explained = false;
};

}  // namespace gptc
