// What each kernel of a plan takes by itself on a GPU.
#pragma once

#include "runtime/cuda/gpu_kernel.h"

#include <set>
#include <string>
#include <vector>

namespace gptc::cuda {

struct KernelTime {
  std::string name;     // of the first: "train_step.17"
  std::string symbols;  // GpuKernel::symbols
  const Op *op = nullptr;
  double ms = 0, least = 0, most = 0;  // of a call: the median of the graphs, and their range
  int copies = 0;                      // of its memory, that calls take in turn
  int64_t bytes = 0;                   // of one copy
  std::string skipped;                 // why it was not timed
};

/// Times every distinct kernel that runs in front of it, the first time that it sees it, on copies of what the kernel
/// finds in the arena: numbers of a real step, indices within their tables, moments that are not negative.
///
///   1. So many copies as together are three times the second-level cache, two at least and no more than calls, as far
///      as memory is free: what a call reads has left the cache by then, as in a step.
///   2. The kernel runs once on each copy, outside of any graph: what a library loads is then loaded.
///   3. `calls` calls, on the copies in turn, are captured in one graph; three of its launches are timed by events,
///      after one that is not. Before each the copies are made again, so that results that go on from what they hold do
///      not grow.
/// The arena is not touched.
class KernelBench : public KernelObserver {
public:
  explicit KernelBench(int calls) : calls(calls) {}
  void willRun(const BoundKernel &kernel) override;
  void ran(const BoundKernel &, int64_t, int64_t) override {}
  std::vector<KernelTime> times;

private:
  const int calls;
  std::set<std::string> seen;  // groupKey
  KernelTime time(const GpuKernel &k) const;
};

}  // namespace gptc::cuda
