// Looking at kernels while they run: a profile, a trace, and the search for the first value that is not finite.
#pragma once

#include "runtime/device/executor.h"

#include <string>
#include <vector>

namespace gptc {

/// Sums up time per kernel and, from OpDef::cost of the ops inside, arithmetic and traffic.
class Profile : public KernelObserver {
public:
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;
  /// A table by place in the model (layers merged) and recipe, most expensive first: share, ms per call of the
  /// function, GFLOP/s, GB/s. `steps` divides the times.
  std::string table(int64_t steps) const;

private:
  struct Entry {
    const Op *op = nullptr;
    int64_t ns = 0, calls = 0;
  };
  llvm::StringMap<Entry> entries;
};

/// Collects kernels as Chrome trace events (chrome://tracing, Perfetto).
class Trace : public KernelObserver {
public:
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;
  /// A named span around kernels, e.g. "step 10".
  void span(const std::string &name, int64_t begin, int64_t end);
  /// Throws UserError(Unwritable, DiskFull).
  void write(const std::string &path) const;

private:
  struct Event {
    std::string name, recipe;
    int64_t begin, end;
    bool kernel;
  };
  std::vector<Event> events;
};

/// Scans every result and keeps the first kernel with a value that is NaN or infinite (-inf written by a causal mask is
/// meant).
class NonFiniteScan : public KernelObserver {
public:
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;
  /// "h3.attn (attention), kernel train_step.41, result 0 [1,5,7] = nan", or "" when everything was finite.
  std::string first;
  /// How many kernels had run before that one.
  int64_t before = 0;
};

/// The same for a run of which every kernel is looked at: one that wrote past the end of the arena is an InternalError.
class CheckedKernels : public NonFiniteScan {
public:
  explicit CheckedKernels(Executor &executor) : executor(executor) {}
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;

private:
  Executor &executor;
};

/// The first element of `data` that is not finite as "[1,5,7] = nan", or "".
std::string firstNonFinite(const Type &type, const void *data, bool allowMinusInf = false);

/// What an op of the model is called: loc and the ops inside, "h3.mlp.c_fc (matmul+add+gelu_tanh)".
std::string describe(const Op &fused);

}  // namespace gptc
