// Checks and times candidates on a GPU: generated kernels, compiled by NVRTC, and the algorithms of cuBLASLt. Buffers
// lie between red zones, and events time the runs.
#pragma once

#include "codegen/codegen.h"
#include "codegen/tuner/tuner.h"
#include "runtime/cuda/gpu.h"
#include "support/thread_pool.h"

#include <memory>

namespace gptc::cuda {

/// What a time depends on besides the source: the GPU, its driver and NVRTC; and the libraries that the target calls,
/// because they determine the default against which candidates are measured.
std::string fingerprintOf(const Gpu &gpu, const Target &target);
/// The fingerprint of this machine's GPU if it runs the target's code; "" if there is none.
std::string fingerprintHere(const Target &target);

/// Trial::source of a schedule on the machine with that fingerprint.
std::string sourceOf(const LoweredGroup &lowered, const Schedule &schedule, const Target &target,
                     const std::string &machine);

/// The CPU's GroupBench for GPUs. Operands of matmuls are integers, so that generated tensor-core kernels and the
/// library give equal bits in any order of summation. The exception is a library's own gelu, which is never chosen. A
/// candidate is rejected if its compiler log reports spilled registers or serialised wgmma. A kernel that fails ruins
/// the context: InternalError.
class GroupBench : public CandidateBench {
public:
  /// `pool` fills operands on the host. Throws UserError(OutOfMemory).
  GroupBench(const Gpu &gpu, const Op &fused, const Target &target, ThreadPool &pool, bool cold);
  ~GroupBench() override;

  /// The recipe's space; if the default is a cuBLASLt call, also each algorithm that the library proposes.
  std::vector<Schedule> space() const;

  const Trial &base() const override;
  std::vector<Trial> propose(llvm::ArrayRef<Schedule> candidates) override;
  void build(llvm::ArrayRef<Trial *> trials) override;
  /// `seconds` does not interrupt a kernel that has been launched.
  Trial::Outcome check(const Trial &trial, double seconds) override;
  Timing time(const Trial &trial, int runs, double seconds, double hopeless) override;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

}  // namespace gptc::cuda
