#include "tools/estimate/planned.h"

#include "ir/mesh.h"
#include "ir/opdef.h"
#include "passes/decisions.h"

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

namespace {

/// Adds what the collectives of a kernel send, `times` a step. `first`: no collective stands right before it, with
/// which it would go as one.
void addSent(PlannedStep &step, const Op &kernel, double times, bool first) {
  auto add = [&](const Op &op) {
    if (!op.isOneOf(OpKind::all_reduce, OpKind::reduce_scatter, OpKind::all_gather, OpKind::broadcast_from))
      return;
    const double ranks = double(op.attrs.getInt("ranks", 1));
    const double whole = double((op.is(OpKind::all_gather) ? op.result() : op.operand(0))->type.bytes());
    PlannedStep::Sent &to = op.attrs.getString("axis") == "tensor"                   ? step.exchange
                            : op.isOneOf(OpKind::all_gather, OpKind::broadcast_from) ? step.gather
                                                                                     : step.reduce;
    to.bytes += times * whole * (ranks - 1) / ranks * (op.is(OpKind::all_reduce) ? 2 : 1);
    if (std::exchange(first, false))
      to.messages += times;
  };
  if (!kernel.is(OpKind::fused))
    return add(kernel);
  for (const Op &op : *kernel.body)
    add(op);
}

}  // namespace

PlannedStep plannedStep(const Module &planned, const Target &target, const MachineRates &rates) {
  PlannedStep step;
  for (const auto &f : planned.functions) {
    const double times = callsPerStep(planned, f->name);
    if (times == 0)
      continue;
    bool bucket = false;  // the kernel before was a collective too
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
  // The pass has costed what is computed again, at rates of its own: its share of the step at those.
  for (const Decision &d : decisionsOf(planned))
    if (d.pass == "remat" && d.name == "all" && d.effect.ms > 0)
      step.recompute = 1e-3 * d.effect.ms / costOfStep(planned, ratesOf(target)).seconds * step.kernels();
  step.arena = double(planned.attrs.getInt("arena_bytes"));
  for (const auto &s : planned.states) {
    const std::string kind = s->attrs.getString("kind");
    double &to = kind == "grad" ? step.gradients : kind == "moment" ? step.moments : step.parameters;
    to += double(s->type.bytes());
  }
  double most = 0;
  for (const auto &f : planned.functions) {
    Buffers here;
    if (const double peak = peakOf(*f, here); peak > most && callsPerStep(planned, f->name) > 0) {
      most = peak;
      step.buffers = std::move(here);
    }
  }
  return step;
}

}  // namespace gptc
