// Forecasts a step on a GPU from the code of its kernels. No GPU is needed.
//
// Generated kernels are compiled and disassembled, and one warp of each is run (codegen/cuda/warp_run.h). A launch
// takes the longest of
//   memory    the bytes that it moves, at 90% of the rate of a copy,
//   latency   its rounds of blocks, each as long as one warp takes on its own,
//   pipes     its rounds, each as long as the pipe that the resident warps of an SM take most, three quarters used,
// and an edge of the graph. A call of a library takes its FLOPs at a share of the peak, or its bytes. A linear layer
// that adds to an f32 residual stream takes the time of the bytes besides by which C and D are wider than the factors.
#pragma once

#include "codegen/cuda/warp_run.h"
#include "ir/gpu_sheets.h"
#include "ir/graph.h"
#include "passes/analysis/cost.h"

#include <string>
#include <vector>

namespace gptc {

struct GpuRates {
  std::string name;    // "H200"
  MachineRates peaks;  // FLOP/s by type
  double copy = 0;     // bytes/s of a copy, read and written
  double clock = 0;    // cycles/s
  int sms = 0;
  int fp32Lanes = 128;  // of an SM
  double l2Bytes = 0;

  // Assumed for all GPUs:
  double memoryLatency = 600, l2Latency = 270;  // cycles until a load is there
  double edge = 1.1e-6;                         // seconds from one kernel of a graph to the next
  double ofCopy = 0.9;                          // share of a copy's rate that kernels reach
  double ofPipe = 0.75;                         // share of a pipe's cycles that are used
  double ofPeak = 0.8;                          // share of the peak that no product exceeds
  // Shares of the data sheet's peak that calls reach: cuBLASLt 13.1 by class, cuDNN 9.14 forward and backward; measured
  // on an H200 (docs/lab/h200.md).
  double linear = 0.655, weightGrad = 0.704, classifier = 0.709;
  double attention = 0.306, attentionGrad = 0.226;
};

GpuRates gpuRatesOf(const GpuSheet &gpu);

/// Parts of a training step.
enum class StepClass {
  linear,          // products forward and for gradients of inputs
  weight_grad,     // products for gradients of weights and biases
  classifier,      // all products with the vocabulary
  attention,       // forward and backward
  cross_entropy,   // with its gradient
  norm,            // forward, backward, gradients of their parameters
  embedding_grad,  // sums of rows by token
  optimizer,       // norm of the gradient, update
  other
};
constexpr StepClass stepClasses[] = {StepClass::linear,         StepClass::weight_grad,   StepClass::classifier,
                                     StepClass::attention,      StepClass::cross_entropy, StepClass::norm,
                                     StepClass::embedding_grad, StepClass::optimizer,     StepClass::other};
const char *nameOf(StepClass c);  // "weight_grad"

/// A launch of a generated kernel.
struct GpuLaunch {
  std::string symbol;
  int64_t blocks = 0;
  int threads = 0, registers = 0;
  int blocksPerSm = 0;  // that fit
  double waves = 0;     // blocks over those that run at a time
  double bytes = 0;     // moved from and to memory
  WarpRun warp;         // the first of a block
  double memorySeconds = 0, latencySeconds = 0, pipeSeconds = 0;

  double seconds() const;
  const char *bound() const;  // "memory", "latency" or "pipes"
};

/// The groups of a plan that have equal kernels, or that start together.
struct GpuGroup {
  std::string place;  // of the first group
  StepClass kind = StepClass::other;
  bool isLibrary = false;
  double calls = 0;                 // in a step
  double flops = 0, bytes = 0;      // of a call; each operand and result counts once
  double floor = 0;                 // seconds of a call at the rate of a copy, or at ofPeak of the peak
  double seconds = 0;               // expected, of a call
  std::vector<GpuLaunch> launches;  // of a generated kernel
};

struct GpuStep {
  std::vector<GpuGroup> groups;
  double seconds() const;
};

/// The groups of a step of a plan for a GPU, without collectives and what the host runs. UserError(TargetUnavailable)
/// without NVRTC or nvdisasm. `cacheDir`: of compiled kernels.
GpuStep gpuStepOf(const Module &planned, const Target &target, const GpuRates &rates, const std::string &cacheDir);

/// The same for a token of @decode; no groups if the plan has none.
GpuStep gpuTokenOf(const Module &planned, const Target &target, const GpuRates &rates, const std::string &cacheDir);

/// What a kernel's launch needs to be known.
struct GpuKernelShape {
  int64_t blocks = 0;
  int threads = 0;
  int64_t sharedBytes = 0;  // that the launch adds
  struct Parameter {
    DType dtype = DType::f32;
    int64_t bytes = 0;
    double growth = -1;  // WarpLaunch::Parameter::growth
  };
  std::vector<Parameter> parameters;
};
/// `sm`: compute capability for which the code is, 90 for sm_90a.
GpuLaunch gpuLaunchOf(const SassFunction &code, const GpuKernelShape &shape, const GpuRates &rates, int sm);

}  // namespace gptc
