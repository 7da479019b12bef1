// Times each kernel of a plan by itself on a GPU.
#pragma once

#include "runtime/cuda/gpu_kernel.h"

#include <set>
#include <string>
#include <vector>

namespace gptc::cuda {

struct KernelTime {
  std::string name;     // of the first such kernel: "train_step.17"
  std::string symbols;  // GpuKernel::symbols
  const Op *op = nullptr;
  double ms = 0, least = 0, most = 0;  // of a call: median over the timed graphs, and their range
  int copies = 0;                      // of its memory, used in turn
  int64_t bytes = 0;                   // of one copy
  std::string skipped;                 // why it was not timed; "" if it was
};

/// Times every distinct kernel when it first appears, on copies of its memory in the arena. So it sees the data of a
/// real step: indices within their tables, moments that are not negative.
///
///   1. Make enough copies to exceed three times the second-level cache, at least two and at most `calls`, as far as
///      memory is free: then a call finds its operands outside the cache, as in a step.
///   2. Run the kernel once on each copy outside any graph, so that libraries load their code.
///   3. Capture `calls` calls in one graph, on the copies in turn. Time three launches by events, after one untimed
///      launch. Refill the copies before each, so that results that accumulate do not grow.
///
/// The arena is only read.
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
