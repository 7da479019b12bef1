// What this machine's kernels take within a training step, and what it can do at best: for `gptc tune` and `gptc
// bench`.
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

/// Measured on all threads of a pool.
struct MachineSpeed {
  double peakFp32 = 0, peakBf16 = 0;  // FLOP/s (runtime/device/peak.h)
  MemorySpeed memory;
  /// That of operands of this type.
  double peak(DType operands) const { return operands == DType::bf16 ? peakBf16 : peakFp32; }
};
/// Memory now, and peaks as the private cache has them ("" for none), else now as well.
MachineSpeed measureSpeed(ThreadPool &pool, const Target &target, const std::string &cacheDir);
/// What to say below a table in which a share, in percent, is above 100; "" where none is.
std::string noteOnShares(double mostOfPeak, double mostOfMemory);

/// A module's fused ops by what they compute (TuningRecord::problem).
struct GroupsByProblem {
  GroupsByProblem(const Module &m, const Target &target);
  std::map<std::string, std::vector<const Op *>> ops;  // problem -> its instances
  std::map<const Op *, std::string> problems;
  std::map<std::string, double> calls;  // in a step
};

/// Times of each call, by the problem of its group.
class TimesByProblem : public KernelObserver {
public:
  explicit TimesByProblem(const GroupsByProblem &groups) : groups(groups) {}
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;
  /// Seconds; no runs where it is in no step.
  Timing timing(const std::string &problem) const;
  /// Half the range of the middle half, over the median, of a problem that ran.
  double noise(const std::string &problem) const;

private:
  const GroupsByProblem &groups;
  std::map<std::string, std::vector<double>> times;  // milliseconds
};

/// Of one call, by OpDef::cost.
double flopsOf(const Op &fused);
/// Operands and results once each.
double bytesOf(const Op &fused);
/// "12x64x128 128x512": of the two operands that come first.
std::string shapesOf(const Op &fused);
/// The type whose peak counts: that of its first operand.
DType operandsOf(const Op &fused);

}  // namespace gptc
