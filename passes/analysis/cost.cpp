#include "passes/analysis/cost.h"

#include "ir/opdef.h"
#include "passes/analysis/liveness.h"

#include "llvm/ADT/SmallPtrSet.h"

#include <algorithm>

namespace gptc {

KernelCost &KernelCost::operator+=(const KernelCost &o) {
  flops += o.flops;
  bytes += o.bytes;
  seconds += o.seconds;
  return *this;
}

MachineRates ratesOf(const Target &t) {
  constexpr double clock = 4e9;      // Hz, typical of servers and desktops at full vector load
  constexpr double fmaPerCycle = 2;  // vector FMAs
  MachineRates r;
  r.fp32 = t.threads * clock * fmaPerCycle * 2 * t.lanes(DType::f32);
  // VDPBF16PS does two products per lane where one FMA does one.
  r.bf16 = t.bf16Dot ? 2 * r.fp32 : r.fp32;
  // A core streams about 30 GB/s from memory and 55 from the last-level cache, where others are too; memory is shared,
  // and full at about ten cores.
  r.dram = 30e9 * std::min(t.threads, 10u);
  r.cache = 55e9 * t.threads;
  r.cacheBytes = 0.5 * double(t.l3Bytes);
  r.launch = t.threads > 1 ? 1.5e-6 : 0.3e-6;
  return r;
}

MachineRates ratesOf(const Target &t, double measuredFp32) {
  MachineRates r = ratesOf(t);
  r.bf16 *= measuredFp32 / r.fp32;
  r.fp32 = measuredFp32;
  return r;
}

/// FLOP/s that an op can expect.
static double rateFor(const Op &op, const MachineRates &r) {
  bool low = op.numOperands() > 0;  // a contraction of low-precision operands alone runs at their rate
  for (const Value *v : op.operands())
    low &= v->type.dtype == DType::bf16;
  switch (op.def().fusion) {
  case FusionKind::matmul:
    return r.matmul * (low ? r.bf16 : r.fp32);
  case FusionKind::attention:
    return (op.is(OpKind::attention_grad) ? r.attentionGrad : r.attention) * (low ? r.bf16 : r.fp32);
  case FusionKind::scatter:
    return r.scatter * r.fp32;
  default:
    return r.elementwise * r.fp32;
  }
}

/// Bytes of an operand that a kernel touches: all, or where only gathers read it, a row for each row that they make.
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
  if (op.isOneOf(OpKind::read, OpKind::write, OpKind::ret, OpKind::yield, OpKind::reshape, OpKind::constant))
    return c;
  double compute = 0;
  auto add = [&](const Op &inner) {
    if (!inner.def().cost || inner.isOneOf(OpKind::yield, OpKind::constant))
      return;
    double flops = inner.def().cost(inner).flops;
    c.flops += flops;
    compute += flops / rateFor(inner, rates);
    // A contraction loads and stores its operands once to pack them, and a sum that it continues.
    if (inner.is(OpKind::matmul))
      for (const Value *v : inner.operands()) {
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
  const double bandwidth = c.bytes <= rates.cacheBytes ? rates.cache : rates.dram;
  c.seconds = std::max(compute, c.bytes / bandwidth) + rates.launch;
  return c;
}

KernelCost costOf(const Function &f, const MachineRates &rates) {
  KernelCost sum;
  for (const Op &op : f.body)
    sum += costOf(op, rates);
  return sum;
}

double callsPerStep(const Module &m, llvm::StringRef function) {
  if (function == "accumulate")
    return double(std::max<int64_t>(1, m.attrs.getInt("accumulate", 1)));
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
