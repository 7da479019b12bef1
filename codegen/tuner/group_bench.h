// Measures candidates on the CPU. Jit compiles them, the thread pool runs them, and red zones surround their memory.
#pragma once

#include "codegen/codegen.h"
#include "codegen/tuner/neighbours.h"
#include "codegen/tuner/tuner.h"
#include "support/thread_pool.h"

#include <functional>
#include <memory>

namespace gptc {

/// Makes a kernel from a schedule: lowerGroup, or in tests a function that makes wrong kernels.
using Lowering = std::function<LoweredGroup(const Op &, const Schedule &, const Target &)>;

/// The operands come from fillOperand. check() restores operands and red zones that a candidate has overwritten.
class GroupBench : public CandidateBench {
public:
  /// Compiles and runs the default schedule, whose results are the reference. `cold`: empties the caches before each
  /// timed call, like a step whose memory exceeds the caches. Asserts that the target is a CPU and that the default
  /// kernel compiles and writes to its results only. Throws UserError(OutOfMemory) if the buffers do not fit.
  /// `neighbours`: make each timed call too, in memory of their own; null if there are none.
  GroupBench(const Op &fused, const Target &target, ThreadPool &pool, bool cold, Lowering lowering = nullptr,
             Neighbours *neighbours = nullptr);
  ~GroupBench() override;

  const Trial &base() const override;
  std::vector<Trial> propose(llvm::ArrayRef<Schedule> candidates) override;
  void build(llvm::ArrayRef<Trial *> trials) override;
  /// A candidate that takes longer than `seconds` is stopped between two of its tasks. No task runs forever, as all
  /// loops of the kernel IR are bounded.
  Trial::Outcome check(const Trial &trial, double seconds) override;
  Timing time(const Trial &trial, int runs, double seconds, double hopeless) override;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

}  // namespace gptc
