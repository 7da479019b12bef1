#include "passes/analysis/cost.h"

#include "ir/facts.h"
#include "ir/folds.h"
#include "ir/gpu_sheets.h"
#include "ir/opdef.h"
#include "passes/analysis/liveness.h"
#include "support/diagnostics.h"

#include "llvm/ADT/SmallPtrSet.h"

#include <algorithm>

namespace gptc {

KernelCost &KernelCost::operator+=(const KernelCost &o) {
  flops += o.flops;
  bytes += o.bytes;
  seconds += o.seconds;
  return *this;
}

const char *nameOf(KernelClass c) {
  switch (c) {
  case KernelClass::matmul:
    return "matmul";
  case KernelClass::attention:
    return "attention";
  case KernelClass::attention_grad:
    return "attention_grad";
  case KernelClass::scatter:
    return "scatter";
  case KernelClass::optimizer:
    return "optimizer";
  case KernelClass::elementwise:
    return "elementwise";
  case KernelClass::communication:
    return "communication";
  }
  GPTC_UNREACHABLE("class {}", int(c));
}

KernelClass classOf(const Op &op) {
  auto anchor = [](const Op &inner) {
    switch (inner.def().fusion) {
    case FusionKind::matmul:
      return KernelClass::matmul;
    case FusionKind::attention:
      return inner.is(OpKind::attention_grad) ? KernelClass::attention_grad : KernelClass::attention;
    case FusionKind::scatter:
      return KernelClass::scatter;
    case FusionKind::collective:
      return KernelClass::communication;
    default:
      return KernelClass::elementwise;
    }
  };
  if (!op.is(OpKind::fused))
    return anchor(op);
  for (const Op &inner : *op.body)
    if (const KernelClass c = anchor(inner); c != KernelClass::elementwise)
      return c;
  return op.loc == "optimizer" ? KernelClass::optimizer : KernelClass::elementwise;  // passes/optimizer.cpp
}

MachineRates ratesOf(const GpuSheet &g) {
  MachineRates r;
  r.fp32 = 1e12 * g.fp32;
  r.tf32 = 1e12 * g.tf32;
  r.fp16 = 1e12 * g.half;
  r.bf16 = g.arch == "sm_75" ? r.fp32 : r.fp16;
  r.fp8 = multipliesEights(g.arch) ? 2 * r.fp16 : r.fp32;
  r.dram = 0.9e9 * g.dram;
  r.cache = 2.5 * r.dram;
  r.cacheBytes = 0.5 * double(1 << 20) * g.l2;
  r.host = 60e9;      // one GPU's share of the memory bandwidth of a server
  r.launch = 1.5e-6;  // within a CUDA graph
  r.packs = false;
  // Shares of the peak that generated kernels are assumed to reach; not measured yet.
  r.matmul = 0.7;
  r.attention = 0.5, r.attentionGrad = 0.4;
  r.elementwise = 0.25;
  return r;
}

MachineRates ratesOf(const Target &t) {
  if (t.isCuda())
    return ratesOf(largestGpu(t.cpu));
  constexpr double clock = 4e9;      // Hz, typical of servers and desktops at full vector load
  constexpr double fmaPerCycle = 2;  // vector FMAs
  MachineRates r;
  r.cycles = t.threads * clock;
  r.fp32 = t.threads * clock * fmaPerCycle * 2 * t.lanes(DType::f32);
  // VDPBF16PS does two products per lane, an FMA one.
  r.bf16 = t.bf16Dot ? 2 * r.fp32 : r.fp32;
  r.tf32 = r.fp16 = r.fp8 = r.fp32;
  // A core streams about 30 GB/s from memory and, while other cores do so too, 55 GB/s from the last-level cache. About
  // ten cores saturate the memory.
  r.dram = 30e9 * std::min(t.threads, 10u);
  r.cache = 55e9 * t.threads;
  r.cacheBytes = 0.5 * double(t.l3Bytes);
  r.launch = t.threads > 1 ? 1.5e-6 : 0.3e-6;
  return r;
}

MachineRates ratesOf(const Target &t, double measuredFp32) {
  MachineRates r = ratesOf(t);
  if (t.isCuda())
    return r;
  r.bf16 *= measuredFp32 / r.fp32;
  r.fp32 = r.tf32 = r.fp16 = r.fp8 = measuredFp32;
  return r;
}

/// Peak FLOP/s of a contraction, by the type of its factors.
static double productRate(const Op &op, const MachineRates &r) {
  if (op.attrs.getBool("tf32"))
    return r.tf32;
  bool bf16 = true, fp16 = true, fp8 = true;
  for (unsigned i : op.def().autocast.lowOperands) {
    bf16 &= op.operand(i)->type.dtype == DType::bf16;
    fp16 &= op.operand(i)->type.dtype == DType::f16;
    fp8 &= op.operand(i)->type.dtype == DType::f8e4m3;
  }
  return op.def().autocast.lowOperands.empty() ? r.fp32 : fp8 ? r.fp8 : bf16 ? r.bf16 : fp16 ? r.fp16 : r.fp32;
}

double contractionPeak(const Op &fused, const MachineRates &rates) {
  for (const Op &op : *fused.body)
    if (op.def().fusion == FusionKind::matmul || op.def().fusion == FusionKind::attention)
      return productRate(op, rates);
  return 0;
}

/// FLOP/s that an op reaches in practice.
static double rateFor(const Op &op, const MachineRates &r) {
  switch (op.def().fusion) {
  case FusionKind::matmul:
    return r.matmul * productRate(op, r);
  case FusionKind::attention:
    return (op.is(OpKind::attention_grad) ? r.attentionGrad : r.attention) * productRate(op, r);
  case FusionKind::scatter:
    return r.scatter * r.fp32;
  default:
    return r.elementwise * r.fp32;
  }
}

/// Bytes of a group's operand that its kernel touches; `inside` is its block argument. If only gather ops read it,
/// these are the bytes of their results, at most the whole operand.
static double touched(const Value *operand, const Value *inside) {
  double rows = 0;
  for (const Op *user : inside->users()) {
    if (user->def().fusion != FusionKind::gather)
      return double(operand->type.bytes());
    rows += double(user->result()->type.elements()) * sizeOf(operand->type.dtype);
  }
  return std::min(rows, double(operand->type.bytes()));
}

KernelCost costOf(const Op &op, const MachineRates &rates) {
  KernelCost c;
  if (op.isOneOf(OpKind::read, OpKind::write, OpKind::ret, OpKind::yield, OpKind::reshape, OpKind::done,
                 OpKind::constant))
    return c;
  double compute = 0;
  auto add = [&](const Op &inner) {
    if (!inner.def().cost || inner.isOneOf(OpKind::yield, OpKind::constant))
      return;
    double flops = inner.def().cost(inner).flops;
    c.flops += flops;
    compute += flops / rateFor(inner, rates);
    // A matmul loads and stores each operand once: factors to pack them, unless they come in panels, and the sum that
    // it continues (`init`).
    if (rates.packs && inner.is(OpKind::matmul))
      for (const Value *v : inner.operands()) {
        if (v->def && v->def->is(OpKind::unpack))
          continue;
        const double bytes = 2 * double(v->type.bytes());
        compute += bytes / (bytes <= rates.cacheBytes ? rates.cache : rates.dram);
      }
  };
  llvm::SmallPtrSet<const Value *, 8> seen;
  if (op.is(OpKind::fused)) {
    for (const Op &inner : *op.body)
      add(inner);
    for (unsigned i = 0; i < op.numOperands(); ++i)
      if (seen.insert(rootOf(op.operand(i))).second)
        c.bytes += touched(op.operand(i), op.body->args[i].get());
  } else {
    add(op);
    for (const Value *v : op.operands())
      if (seen.insert(rootOf(v)).second)
        c.bytes += op.def().fusion == FusionKind::gather ? double(op.result()->type.bytes()) : double(v->type.bytes());
  }
  for (unsigned i = 0; i < op.numResults(); ++i)
    c.bytes += double(op.result(i)->type.bytes());
  const double bandwidth = runsOnHost(op) && rates.host  ? rates.host
                           : c.bytes <= rates.cacheBytes ? rates.cache
                                                         : rates.dram;
  c.seconds = std::max(compute, c.bytes / bandwidth) + rates.launch;
  return c;
}

double packingSeconds(const Op &product, const MachineRates &rates) {
  const Type &b = product.operand(1)->type;
  const double cycles = b.dtype == DType::bf16 ? 0.2 : 0.3;  // of each element
  return rates.packs ? cycles * double(b.elements()) / rates.cycles : 0;
}

KernelCost costOf(const Function &f, const MachineRates &rates) {
  KernelCost sum;
  for (const Op &op : f.body)
    sum += costOf(op, rates);
  return sum;
}

double callsPerStep(const Module &m, llvm::StringRef function) {
  if (llvm::StringRef level = function; level.consume_front("fold")) {
    int n = 0;
    if (level.getAsInteger(10, n))
      return 0;
    double calls = 0;
    for (int64_t shard = 0; shard + 1 < fact<&ParallelFacts::shards>(m); ++shard)
      calls += levelAfterShard(shard) == n;
    return calls;
  }
  if (function == "accumulate")
    return double(std::max<int64_t>(1, fact<&BatchFacts::accumulate>(m)));
  if (function == "outer")
    return 1 / double(fact<&ParallelFacts::syncEvery>(m));
  return function == "train_step" || function == "update" ? 1 : 0;
}

KernelCost costOfStep(const Module &m, const MachineRates &rates) {
  KernelCost sum;
  for (const auto &f : m.functions)
    if (const double n = callsPerStep(m, f->name); n > 0) {
      KernelCost c = costOf(*f, rates);
      sum += {n * c.flops, n * c.bytes, n * c.seconds};
    }
  return sum;
}

}  // namespace gptc
