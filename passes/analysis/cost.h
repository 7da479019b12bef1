// Predicted time and traffic of a kernel: the roofline model (Williams, Waterman & Patterson 2009) over OpDef::cost,
//   seconds = max(FLOPs / rate, bytes / bandwidth) + launch,
// with one rate for each kind of work. Passes use it to choose between alternatives, tools to forecast a step.
// docs/performance.md gives the error of the forecasts.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/schedule.h"

namespace gptc {

struct GpuSheet;

/// Peak rates of a machine, of all threads together. A decision that uses them depends on no other property of the
/// machine.
struct MachineRates {
  double fp32 = 0, tf32 = 0, bf16 = 0, fp16 = 0, fp8 = 0;  // peak FLOP/s by type of factors; an FMA counts as two
  double dram = 0, cache = 0;  // bytes/s of a streaming kernel, from memory and from the last-level cache
  double host = 0;             // bytes/s of groups that the host runs for a GPU (offload); 0: as other groups
  double cacheBytes = 0;       // a kernel that moves at most this many bytes gets the bandwidth of the cache
  double launch = 0;           // seconds to start a kernel on all threads and to wait for the last of them
  bool packs = true;           // matmuls copy their operands into panels first
  double cycles = 0;           // clock cycles per second, of all CPU cores together
  // Shares of the peak that kernels reach in practice.
  double matmul = 0.93;  // contractions, register-tiled
  double attention = 0.52, attentionGrad = 0.42;
  double elementwise = 0.12;   // includes exponentials, divisions and dependent chains
  double scatter = 1.0 / 256;  // rows are added one by one, in order
  /// Time of a call of cuBLASLt that also sums the columns of its second factor, over one that does not: on an H200
  /// they reached 0.495 and 0.704 of the peak (docs/lab/cuda-kernels.md).
  double biasGradient = 1.42;
};

/// The rates of a target: of a CPU from cores, vector lanes and a typical clock; of a GPU from the data sheet of the
/// largest one of its architecture. They depend on no measurement, so that two compilations make equal plans.
MachineRates ratesOf(const Target &t);
/// The same with a measured fp32 peak in FLOP/s (codegen/cpu/peak.h), for forecasts. The other arithmetic rates of a
/// CPU are scaled with it; rates of a GPU stay as they are.
MachineRates ratesOf(const Target &t, double measuredFp32);

/// The rates of a GPU from its data sheet.
MachineRates ratesOf(const GpuSheet &gpu);

/// Kinds of work with different rates. Forecasts and measurements are compared by them. The anchor of a kernel decides
/// its kind; `optimizer` is the kernels of the gradient norm, clipping and the update.
enum class KernelClass { matmul, attention, attention_grad, scatter, optimizer, elementwise, communication };
constexpr KernelClass kernelClasses[] = {KernelClass::matmul,       KernelClass::attention, KernelClass::attention_grad,
                                         KernelClass::scatter,      KernelClass::optimizer, KernelClass::elementwise,
                                         KernelClass::communication};
const char *nameOf(KernelClass c);  // "attention_grad"
KernelClass classOf(const Op &op);

struct KernelCost {
  double flops = 0;
  double bytes = 0;  // operands and results of the group; values inside the group count nothing
  double seconds = 0;
  KernelCost &operator+=(const KernelCost &o);
};

/// The cost of one kernel: a fused op, or an op outside of a group. Ops that run no code cost nothing.
KernelCost costOf(const Op &op, const MachineRates &rates);
/// Peak FLOP/s of a group's contraction, by the type of its factors; 0 if it has none.
double contractionPeak(const Op &fused, const MachineRates &rates);
/// Seconds that a matmul on a CPU spends on packing its second operand into panels; 0 if `rates.packs` is false.
double packingSeconds(const Op &product, const MachineRates &rates);
/// The sum over all ops of a function.
KernelCost costOf(const Function &f, const MachineRates &rates);
/// Calls of a function in one optimizer step: @train_step and @update 1; @accumulate the module's `accumulate`; @foldN
/// one for each logical shard but the last whose number, from 0, ends in exactly N binary ones; @outer one in
/// `sync_every` steps; others 0: @train_step_whole and @update_whole, too, which some steps at the beginning call.
double callsPerStep(const Module &m, llvm::StringRef function);
/// The cost of one optimizer step: that of each function times its calls.
KernelCost costOfStep(const Module &m, const MachineRates &rates);

}  // namespace gptc
