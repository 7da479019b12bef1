// Predicted time and traffic of a kernel: the roofline (Williams, Waterman & Patterson 2009) over OpDef::cost,
//   seconds = max(FLOPs / rate, bytes / bandwidth) + launch,
// with a rate for each kind of work. Good for choosing between two ways to compute a thing and for a forecast of a
// step; docs/performance.md says how far off it is.
#pragma once

#include "ir/graph.h"
#include "ir/kernel/schedule.h"

namespace gptc {

/// What a machine can do. Data: a decision that depends on it depends on nothing else of the machine. All rates are
/// those of all threads together.
struct MachineRates {
  double fp32 = 0, tf32 = 0, bf16 = 0, fp16 = 0;  // FLOP/s at best by type of the factors, an FMA counting as two
  double dram = 0, cache = 0;  // bytes/s of a kernel that streams, from memory and from the last-level cache
  double host = 0;             // bytes/s of groups that the host runs beside a GPU; what crosses to it is less
  double cacheBytes = 0;       // working sets up to this are served by the cache
  double launch = 0;           // seconds to start a kernel on all threads and to wait for the last of them
  bool packs = true;           // matmuls copy their operands into panels first
  double cycles = 0;           // of a CPU's cores per second
  // Shares of the peak that kernels reach in practice.
  double matmul = 0.93;  // contractions, register-tiled
  double attention = 0.52, attentionGrad = 0.42;
  double elementwise = 0.12;   // exponentials, divisions and dependent chains among them
  double scatter = 1.0 / 256;  // rows added one by one, in order
};

/// The rates of a target: of a CPU from cores, vector lanes and a typical clock, of a GPU's architecture from the data
/// sheet of its largest one for training. They do not depend on a measurement, so that two compilations make equal
/// plans.
MachineRates ratesOf(const Target &t);
/// The same with a measured fp32 peak (codegen/cpu/peak.h), for forecasts; the other rates of a CPU's arithmetic follow
/// it.
MachineRates ratesOf(const Target &t, double measuredFp32);

/// Kinds of work whose rates differ: what forecasts and measurements are compared by. A kernel is of the kind of its
/// anchor; the optimizer's are those of the norm, clipping and the update.
enum class KernelClass { matmul, attention, attention_grad, scatter, optimizer, elementwise, communication };
constexpr KernelClass kernelClasses[] = {KernelClass::matmul,       KernelClass::attention, KernelClass::attention_grad,
                                         KernelClass::scatter,      KernelClass::optimizer, KernelClass::elementwise,
                                         KernelClass::communication};
const char *nameOf(KernelClass c);  // "attention_grad"
KernelClass classOf(const Op &op);

struct KernelCost {
  double flops = 0;
  double bytes = 0;  // operands and results of the group; what stays inside moves nothing
  double seconds = 0;
  KernelCost &operator+=(const KernelCost &o);
};

/// One kernel: a fused op, or an op by itself. Ops that run no code cost nothing.
KernelCost costOf(const Op &op, const MachineRates &rates);
/// What a product on a CPU takes longer because its second operand is no panels yet (docs/performance.md has what it
/// was fitted to).
double packingSeconds(const Op &product, const MachineRates &rates);
/// All kernels of a function.
KernelCost costOf(const Function &f, const MachineRates &rates);
/// How often one optimizer step calls a function: @train_step and @update once, @accumulate as often as the module
/// says, @foldN as logical shards ask for it, any other never.
double callsPerStep(const Module &m, llvm::StringRef function);
/// One optimizer step.
KernelCost costOfStep(const Module &m, const MachineRates &rates);

}  // namespace gptc
