// gptc bench kernels PLAN on a GPU: every distinct kernel of a plan by itself, against the roofs of that GPU.
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
  bool library = false;         // a call of one
  double calls = 0;             // in a training step
  double flops = 0, bytes = 0;  // of a call (passes/analysis/cost.h)
  std::string compute;          // "bf16": whose peak is its other roof; "" for what memory alone limits
  bool timed() const { return time.skipped.empty(); }
  double stepMs() const { return calls * time.ms; }
};

struct GpuRoof {
  double measured = 0, sheet = 0;  // FLOP/s; 0: not known
  std::string date;                // of the measurement
  double flops() const { return measured > 0 ? measured : sheet; }
};

struct GpuKernelReport {
  std::string device;
  int calls = 0;                         // of each kernel, in a graph
  double copy = 0;                       // bytes/s, read and written
  std::map<std::string, GpuRoof> peaks;  // by GpuKernelRow::compute
  double stepMs = 0;                     // of the plan as it runs: the median of a few steps
  std::vector<GpuKernelRow> rows;        // most time of a step first; then those that are in none, the longest first
  std::unique_ptr<StepRunner> runner;    // of whose plan the rows are
  /// The part of the time that the nearer roof would allow; 0 where nothing is known.
  double ofRoof(const GpuKernelRow &row) const;
  bool memoryBound(const GpuKernelRow &row) const;
  double kernelsMs() const;  // of a step, one after the other
};

/// Runs a few steps on random tokens, with initial values, then every function kernel by kernel. UserError for a plan
/// of several ranks, and as Session's.
GpuKernelReport benchGpuKernels(Plan plan, const std::string &cacheDir, unsigned threads, int calls);
/// A table.
std::string tableOf(const GpuKernelReport &report);
/// The same as JSON.
std::string jsonOf(const GpuKernelReport &report);

}  // namespace gptc
