// Digests of what a step computes, to find out whether another run of it computes the same bits. They are of logical
// elements: padding, addresses, threads and the number of ranks do not count.
#pragma once

#include "runtime/device/executor.h"

#include <map>
#include <string>
#include <vector>

namespace gptc {

/// 32 hexadecimal digits of BLAKE3 for a tensor laid out as `type` says, with padding: of the digests of its pieces, at
/// most 1 MiB each (rows, or parts of one row). Hashes in the threads of `pool`, which must be idle.
std::string digestOf(const Type &type, const void *data, ThreadPool &pool);

/// By the name of the state.
using StateDigests = std::map<std::string, std::string>;
/// Digests of all states that a checkpoint has: parameters, moments and counters, whole also where a rank holds a
/// piece. All ranks must call it together; the first gets them.
StateDigests digestsOfStates(Executor &executor);

/// Throws UserError(RanksDiffer) if this rank has other values than rank 0 of a parameter that each rank has whole, as
/// after loading different files. Of what ranks have in parts nothing can be compared. All ranks must call it together.
void requireSameWeights(Executor &executor);

/// Digests of the results of every kernel, in the order in which they run.
class KernelDigests : public KernelObserver {
public:
  static constexpr size_t digits = 16;  // of a kernel

  explicit KernelDigests(ThreadPool &pool) : pool(pool) {}
  void ran(const BoundKernel &kernel, int64_t begin, int64_t end) override;
  /// `digits` hexadecimal digits per kernel.
  const std::string &all() const { return text; }
  /// The kernel of number i, in words; valid as long as the executor.
  std::string describe(size_t i) const;

private:
  ThreadPool &pool;
  std::string text;
  std::vector<const BoundKernel *> kernels;
};

}  // namespace gptc
