// Candidates on a GPU: generated kernels, compiled by NVRTC, and the algorithms of cuBLASLt, in memory between red
// zones, timed by events.
#pragma once

#include "codegen/codegen.h"
#include "codegen/tuner/tuner.h"
#include "runtime/cuda/gpu.h"
#include "support/thread_pool.h"

#include <memory>

namespace gptc::cuda {

/// What a time depends on beside the source: the GPU, its driver and NVRTC; and what the default is, against which it
/// is measured: which libraries the target calls.
std::string fingerprintOf(const Gpu &gpu, const Target &target);
/// That of the GPU here, if it runs the target's code; "" where there is none.
std::string fingerprintHere(const Target &target);

/// Trial::source of a schedule on the machine of that fingerprint.
std::string sourceOf(const LoweredGroup &lowered, const Schedule &schedule, const Target &target,
                     const std::string &machine);

/// As the CPU's GroupBench. Operands of matmuls are whole numbers: kernels by tensor cores of any kind, and the
/// library, then give equal bits whatever the order of their sums, but for a library's own gelu, which is never chosen.
/// One whose log tells of spilled registers, or of wgmma that the compiler has serialized, is no candidate. A kernel
/// that fails takes the context with it: InternalError.
class GroupBench : public CandidateBench {
public:
  /// `pool` fills operands on the host. UserError(OutOfMemory).
  GroupBench(const Gpu &gpu, const Op &fused, const Target &target, ThreadPool &pool, bool cold);
  ~GroupBench() override;

  /// The recipe's space, and where the default is a call of cuBLASLt each algorithm that it proposes.
  std::vector<Schedule> space() const;

  const Trial &base() const override;
  std::vector<Trial> propose(llvm::ArrayRef<Schedule> candidates) override;
  void build(llvm::ArrayRef<Trial *> trials) override;
  /// What has been launched runs to its end.
  Trial::Outcome check(const Trial &trial, double seconds) override;
  Timing time(const Trial &trial, int runs, double seconds, double hopeless) override;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

}  // namespace gptc::cuda
