// Candidates on the CPU: compiled by Jit, run on the pool, in memory between red zones.
#pragma once

#include "codegen/codegen.h"
#include "codegen/tuner/tuner.h"
#include "support/thread_pool.h"

#include <functional>
#include <memory>

namespace gptc {

/// From a schedule to a kernel: lowerGroup, or in tests something that goes wrong.
using Lowering = std::function<LoweredGroup(const Op &, const Schedule &, const Target &)>;

/// Operands are those of fillOperand. Between candidates everything is as before: operands that one has written to are
/// filled again, and red zones painted.
class GroupBench : public CandidateBench {
public:
  /// Compiles and runs the default schedule, whose results are what others must give. `cold`: caches are emptied before
  /// each call that is timed, as a step does whose memory no cache can hold. UserError(OutOfMemory) where buffers do
  /// not fit.
  GroupBench(const Op &fused, const Target &target, ThreadPool &pool, bool cold, Lowering lowering = nullptr);
  ~GroupBench() override;

  const Trial &base() const override;
  std::vector<Trial> propose(llvm::ArrayRef<Schedule> candidates) override;
  void build(llvm::ArrayRef<Trial *> trials) override;
  /// A candidate that takes too long is given up between two of its tasks. Loops of the kernel IR end: there is no
  /// other way for one never to.
  Trial::Outcome check(const Trial &trial, double seconds) override;
  Timing time(const Trial &trial, int runs, double seconds, double hopeless) override;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

}  // namespace gptc
