#include "tools/estimate/planned.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "ir/plan_check.h"
#include "passes/analysis/liveness.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>

namespace gptc {

DeviceSpec shareOf(const DeviceSpec &node, int64_t ranks) {
  DeviceSpec d = node;
  for (double *whole : {&d.fp32, &d.tf32, &d.fp16, &d.bf16, &d.memory, &d.bandwidth, &d.cacheBandwidth, &d.cacheBytes})
    *whole /= double(ranks);
  return d;
}

double PlannedStep::kernels() const {
  double sum = 0;
  for (const auto &[kind, s] : seconds)
    sum += s;
  return sum;
}

const PlannedMemory::Region &PlannedMemory::largest() const {
  GPTC_CHECK(!regions.empty(), "a plan without functions");
  return std::max_element(regions.begin(), regions.end(),
                          [](const auto &a, const auto &b) { return a.second.bytes < b.second.bytes; })
      ->second;
}

PlannedMemory plannedMemory(const Module &planned, const Target &target) {
  PlannedMemory memory;
  const auto alignment = uint64_t(planAlignmentOf(target));
  auto rounded = [&](int64_t bytes) { return int64_t(llvm::alignTo(uint64_t(bytes), alignment)); };
  int64_t base = 0;  // offset of the functions' region
  for (const auto &s : planned.states) {
    if (livesOnHost(*s) || isInFiles(*s))
      continue;
    const int64_t bytes = rounded(alignedBytes(s->type));
    base = std::max(base, fact<&StateFacts::at>(*s) + bytes);
    const std::optional<StateKind> kind = kindOf(*s);
    const bool ofOptimizer = kind == StateKind::moment || kind == StateKind::anchor;
    double &to = kind == StateKind::grad    ? memory.gradients
                 : ofOptimizer              ? memory.moments
                 : kind == StateKind::cache ? memory.cache
                                            : memory.parameters;
    to += double(bytes);
  }
  memory.host = double(fact<&MemoryFacts::hostBytes>(planned));
  for (const auto &f : planned.functions) {
    int64_t end = base;
    auto holds = [&](int64_t at, int64_t bytes) {
      if (at < hostArena)
        end = std::max(end, at + bytes);
    };
    for (size_t i = 0; i < f->body.args.size(); ++i)
      holds(fact<&FunctionFacts::argsAt>(*f)[i], rounded(alignedBytes(f->body.args[i]->type)));
    for (const Op &op : f->body) {
      const std::vector<int64_t> at = fact<&GroupFacts::at>(op), places = fact<&GroupFacts::wsAt>(op),
                                 sizes = fact<&GroupFacts::ws>(op);
      for (size_t i = 0; i < at.size(); ++i)
        holds(at[i], rounded(alignedBytes(op.result(unsigned(i))->type)));
      for (size_t i = 0; i < places.size(); ++i)
        holds(places[i], rounded(sizes[i]));
    }
    PlannedMemory::Region &region = memory.regions[f->name];
    region.bytes = double(end - base);
    peakOf(*f, region.buffers);
  }
  return memory;
}

PlannedMemory lineThrough(const PlannedMemory &less, const PlannedMemory &deeper, double more) {
  auto line = [&](double a, double b) { return b + more * (b - a); };
  PlannedMemory m;
  m.host = line(less.host, deeper.host);
  m.parameters = line(less.parameters, deeper.parameters);
  m.gradients = line(less.gradients, deeper.gradients);
  m.moments = line(less.moments, deeper.moments);
  m.cache = line(less.cache, deeper.cache);
  for (const auto &[name, b] : deeper.regions) {
    auto it = less.regions.find(name);
    GPTC_CHECK(it != less.regions.end(), "one layer more has @{}", name);
    const PlannedMemory::Region &a = it->second;
    PlannedMemory::Region &to = m.regions[name];
    to.bytes = line(a.bytes, b.bytes);
    to.buffers = lineThrough(a.buffers, b.buffers, more);
  }
  return m;
}

double bytesSent(const Op &op) {
  if (!op.isOneOf(OpKind::all_reduce, OpKind::reduce_scatter, OpKind::all_gather, OpKind::broadcast_from))
    return 0;
  const double ranks = double(op.attrs.getInt("ranks", 1));
  const double whole = double((op.is(OpKind::all_gather) ? op.result() : op.operand(0))->type.bytes());
  return whole * (ranks - 1) / ranks * (op.is(OpKind::all_reduce) ? 2 : 1);
}

namespace {

/// Adds what the collectives of a kernel send, `times` per step. `first`: no collective directly precedes it, with
/// which it would form one bucket.
void addSent(PlannedStep &step, const Op &kernel, double times, bool first) {
  auto add = [&](const Op &op) {
    const double bytes = bytesSent(op);
    if (bytes == 0)
      return;
    PlannedStep::Sent &to = op.attrs.getString("axis") == "tensor"                   ? step.exchange
                            : op.isOneOf(OpKind::all_gather, OpKind::broadcast_from) ? step.gather
                                                                                     : step.reduce;
    to.bytes += times * bytes;
    if (std::exchange(first, false))
      to.messages += times;
  };
  if (!kernel.is(OpKind::fused))
    return add(kernel);
  for (const Op &op : *kernel.body)
    add(op);
}

}  // namespace

PlannedStep::Sent sentBy(const Op &kernel) {
  PlannedStep::Sent sent;
  if (kernel.is(OpKind::fused)) {
    for (const Op &op : *kernel.body)
      sent.bytes += bytesSent(op);
  } else {
    sent.bytes = bytesSent(kernel);
  }
  sent.messages = sent.bytes > 0 ? 1 : 0;
  return sent;
}

PlannedStep plannedStep(const Module &planned, const Target &target, const MachineRates &rates) {
  PlannedStep step;
  for (const auto &f : planned.functions) {
    const double times = callsPerStep(planned, f->name);
    if (times == 0)
      continue;
    bool bucket = false;  // the previous kernel was a collective too
    for (const Op &op : f->body) {
      const KernelCost c = costOf(op, rates);
      if (c.seconds == 0)
        continue;
      const KernelClass kind = classOf(op);
      if (kind == KernelClass::communication) {
        addSent(step, op, times, !bucket);
      } else {
        step.seconds[kind] += times * c.seconds;
        step.flops += times * c.flops;
      }
      bucket = kind == KernelClass::communication;
    }
  }
  // The pass has costed recomputation at its own rates: take its share of the step at those.
  for (const Decision &d : decisionsOf(planned))
    if (d.pass == "remat" && d.name == "all" && d.effect.ms > 0)
      step.recompute = 1e-3 * d.effect.ms / costOfStep(planned, ratesOf(target)).seconds * step.kernels();
  step.memory = plannedMemory(planned, target);
  return step;
}

}  // namespace gptc
