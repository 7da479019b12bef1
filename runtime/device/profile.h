// Observers of kernels: a profile, a trace, and the search for the first non-finite value.
#pragma once

#include "runtime/device/executor.h"

#include <string>
#include <vector>

namespace gptc {

/// Sums up the time of each kernel and, from OpDef::cost of its ops, arithmetic and traffic.
class Profile : public KernelObserver {
public:
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;
  /// A table by place in the model (layers merged) and recipe, most expensive first: share, ms, GFLOP/s, GB/s. Times
  /// are divided by `steps`.
  std::string table(int64_t steps) const;

private:
  struct Entry {
    const Op *op = nullptr;
    int64_t ns = 0, calls = 0;
  };
  llvm::StringMap<Entry> entries;
};

/// Kernels as Chrome trace events (chrome://tracing, Perfetto), of a run or of a forecast. Each is a process of its
/// own, so that the events of both may stand in one file.
class Trace : public KernelObserver {
public:
  enum class Of { run, forecast };
  explicit Trace(Of of = Of::run) : of(of) {}
  /// Times in nanoseconds, here and below.
  void add(const Op &kernel, int64_t begin, int64_t end);
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;
  /// Adds a named span around kernels, such as "step 10".
  void span(const std::string &name, int64_t begin, int64_t end);
  /// Throws UserError(Unwritable, DiskFull).
  void write(const std::string &path) const;

private:
  struct Event {
    std::string name, recipe;
    int64_t begin, end;
    bool kernel;
  };
  Of of;
  std::vector<Event> events;
};

/// Scans every result and keeps the first kernel with NaN or infinity. Ignores -inf written by a causal mask.
class NonFiniteScan : public KernelObserver {
public:
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;
  /// "h3.attn (attention), kernel train_step.41, result 0 [1,5,7] = nan"; "" if all values were finite.
  std::string first;
  /// Number of kernels that ran before that one.
  int64_t before = 0;
};

/// Also checks the arena after each kernel: throws InternalError if one wrote past its end.
class CheckedKernels : public NonFiniteScan {
public:
  explicit CheckedKernels(Executor &executor) : executor(executor) {}
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;

private:
  Executor &executor;
};

/// The first non-finite element of `data`, as "[1,5,7] = nan"; "" if there is none.
std::string firstNonFinite(const Type &type, const void *data, bool allowMinusInf = false);

/// Name of a group for people: loc and the ops inside, "h3.mlp.c_fc (matmul+add+gelu_tanh)".
std::string describe(const Op &fused);

}  // namespace gptc
