// Times of this machine's kernels within a training step, and its peak rates, for `gptc tune` and `gptc bench`.
#pragma once

#include "codegen/cpu/peak.h"
#include "codegen/tuner/tuner.h"
#include "runtime/device/executor.h"
#include "runtime/device/peak.h"
#include "tools/study/step_runner.h"

#include <map>
#include <string>
#include <vector>

namespace gptc {

/// Peak rates with all threads of a pool.
struct MachineSpeed {
  double peakFp32 = 0, peakBf16 = 0;  // FLOP/s (runtime/device/peak.h)
  MemorySpeed memory;
  /// Peak for operands of this type.
  double peak(DType operands) const { return operands == DType::bf16 ? peakBf16 : peakFp32; }
};
/// The peaks alone; memory stays 0.
MachineSpeed measureArithmetic(ThreadPool &pool, const Target &target, const std::string &cacheDir);
/// Measures memory now; takes peaks from the private cache ("" for none), else measures them too.
MachineSpeed measureSpeed(ThreadPool &pool, const Target &target, const std::string &cacheDir);
/// A note below a table with a share above 100%; "" if there is none. Shares in percent.
std::string noteOnShares(double mostOfPeak, double mostOfMemory);

/// A module's fused ops, grouped by what they compute (TuningRecord::problem).
struct GroupsByProblem {
  GroupsByProblem(const Module &m, const Target &target);
  std::map<std::string, std::vector<const Op *>> ops;  // problem -> its instances
  std::map<const Op *, std::string> problems;
  std::map<std::string, double> calls;  // per step
};

/// Records the time of each call by problem.
class TimesByProblem : public KernelObserver {
public:
  explicit TimesByProblem(const GroupsByProblem &groups) : groups(groups) {}
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;
  /// Seconds; without runs if the problem is not in the step.
  Timing timing(const std::string &problem) const;
  /// Half the interquartile range, relative to the median; the problem must have run.
  double noise(const std::string &problem) const;

private:
  const GroupsByProblem &groups;
  std::map<std::string, std::vector<double>> times;  // milliseconds
};

/// FLOPs per call, by OpDef::cost.
double flopsOf(const Op &fused);
/// Bytes of operands and results, each counted once.
double bytesOf(const Op &fused);
/// "12x64x128 128x512": shapes of the first two operands.
std::string shapesOf(const Op &fused);
/// The type whose peak counts: the first operand's.
DType operandsOf(const Op &fused);

}  // namespace gptc
