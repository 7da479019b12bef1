// The peak that MFU is a share of. A machine's peak is measured once and kept in the private cache, so that all shares
// on one machine have one base, whatever else runs when a run starts.
#pragma once

#include "codegen/codegen.h"
#include "support/thread_pool.h"

#include <functional>
#include <optional>
#include <string>

namespace gptc {

struct Peak {
  double flops = 0;  // FLOP/s; 0 if it cannot be measured
  std::string date;  // of the measurement, UTC: "2026-11-23"
};

/// A peak recorded in the private cache.
///
///   1. If there is no record, measure until three attempts agree within 2%, at most eight times. Other work on the
///      machine only lowers an attempt, so the greatest counts.
///   2. A new measurement replaces the record only if it is greater.
///
/// If the cache cannot be read or written, each run measures again.
class PeakRecord {
public:
  /// `cacheDir`: "" for no cache. `what`: all that the peak depends on: device, libraries, type, kernel. `attempt`: one
  /// measurement in FLOP/s, 0 if it failed. `by`: what is measured, for messages: "cuBLASLt's product"; may be "".
  PeakRecord(std::string cacheDir, std::string what, std::function<double()> attempt, std::string by = "")
      : by(std::move(by)), cacheDir(std::move(cacheDir)), what(std::move(what)), attempt(std::move(attempt)) {}
  const std::string by;
  /// The recorded peak; measures if there is none.
  Peak get() const;
  /// Measures in any case and returns the greater of this and the record.
  Peak again() const;

private:
  std::string key() const;
  std::optional<Peak> known() const;
  std::string cacheDir, what;
  std::function<double()> attempt;
};

/// The peak of this machine's CPU with all threads of the pool, by the loop of codegen/cpu/peak.h. The pool must
/// outlive the record.
PeakRecord peakOfCpu(ThreadPool &pool, const Target &host, DType operands, const std::string &cacheDir);

/// A published peak.
struct SheetPeak {
  double flops = 0;  // FLOP/s; 0 if unknown
  std::string of;    // the device: "NVIDIA H200"
};

/// Utilization of a run: a share of the user's peak if given, else of a data sheet's, else of the measured one.
class Utilization {
public:
  /// `given`: the user's peak in FLOP/s; 0 if none; negative to use the measured peak rather than a data sheet's.
  /// `compute`: "bf16", for messages. Measures if the measured peak is needed and not recorded.
  Utilization(double given, SheetPeak sheet, PeakRecord record, std::string compute);

  /// The base of the shares: "given", "sheet", "measured"; "" if no peak is known.
  const char *of() const;
  /// A line for the start of a run; "" if the user has given the peak or none is known.
  std::string describe() const;

  struct Shares {
    double mfu;       // share of the base of(); NaN if unknown
    double measured;  // share of the measured peak, if that is not the base; else NaN
  };
  /// Shares for this rate in FLOP/s of one device. `say` receives an explanation of any share above 1. A measured peak
  /// below the rate was too low and is measured again, at most three times; a share that stays above 1 is explained
  /// once.
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
