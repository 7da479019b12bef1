// gptc bench kernels PLAN on a GPU: times every distinct kernel of a plan by itself and compares it with the GPU's
// roofs.
#pragma once

#include "runtime/cuda/kernel_bench.h"
#include "runtime/plan/plan.h"
#include "tools/study/step_runner.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

struct GpuKernelRow {
  cuda::KernelTime time;
  std::string place, shapes;    // "h0.mlp.c_fc (matmul+add+gelu_tanh)", "8192x768 768x3072"
  bool library = false;         // a library call
  double calls = 0;             // per training step
  double flops = 0, bytes = 0;  // per call (passes/analysis/cost.h)
  std::string compute;          // type whose peak is its compute roof: "bf16"; "" if only memory limits it
  bool timed() const { return time.skipped.empty(); }
  double stepMs() const { return calls * time.ms; }
};

struct GpuRoof {
  double measured = 0, sheet = 0;  // FLOP/s; 0: unknown
  std::string date;                // of the measurement
  double flops() const { return measured > 0 ? measured : sheet; }
};

struct GpuKernelReport {
  std::string device;
  int calls = 0;                         // of each kernel, in a graph
  double copy = 0;                       // bytes/s, counting reads and writes
  std::map<std::string, GpuRoof> peaks;  // by GpuKernelRow::compute
  double stepMs = 0;                     // of the plan as it runs: the median of a few steps
  std::vector<GpuKernelRow> rows;  // largest share of the step first; then kernels outside the step, the longest first
  std::unique_ptr<StepRunner> runner;  // holds the plan of the rows
  /// Ratio of the time that the nearer roof allows to the measured time; 0 if unknown.
  double ofRoof(const GpuKernelRow &row) const;
  bool memoryBound(const GpuKernelRow &row) const;
  double kernelsMs() const;  // sum over a step
};

/// Runs a few steps on random tokens from initial values, then every function kernel by kernel. Throws UserError for a
/// plan of several ranks, and those of Session.
GpuKernelReport benchGpuKernels(Plan plan, const std::string &cacheDir, unsigned threads, int calls);
/// As a table; as JSON.
std::string tableOf(const GpuKernelReport &report);
std::string jsonOf(const GpuKernelReport &report);

}  // namespace gptc
