// 1. Decisions that a pass recorded are taken as they are.
// 2. For others the joint graph of the plan is compiled again with the decision taken otherwise, down to the memory
//    plan, and both results are compared: bytes of the arena exactly, traffic and time by the cost model. Where a
//    budget of memory is in effect, both are compiled without it, so that it does not answer for the other.
// 3. What cannot be undone in the joint graph (attention as one op, masks from counters, the cut of the batch) is
//    computed from the shapes that stand there.
#include "tools/driver/explain.h"

#include "ir/diagnostics.h"
#include "ir/opdef.h"
#include "ir/words.h"
#include "passes/analysis/liveness.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace gptc {

namespace {

class Explainer {
public:
  Explainer(const Plan &plan, double fp32Peak) : plan(plan), rates(ratesOf(plan.target, fp32Peak)) {}

  Explanation run() {
    Explanation e{rates, forecast(*plan.planned, rates), decisionsOf(*plan.planned)};
    decisions = &e.decisions;
    now = e.plan;
    auto withoutRemat = [](std::vector<PassUse> &uses) { setOption(uses, "remat", "budget", std::string("none")); };
    plain = forecast(*runFrom(*plan.joint, "fuse", plan.target, withoutRemat), rates);
    fusion();
    remat();
    order();
    inPlace();
    padding();
    precision();
    attention();
    dropout();
    microBatch();
    std::stable_sort(e.decisions.begin(), e.decisions.end(), [](const Decision &a, const Decision &b) {
      return std::tie(a.pass, a.name) < std::tie(b.pass, b.name);
    });
    return e;
  }

private:
  const Plan &plan;
  const MachineRates rates;
  Forecast now, plain;  // as planned; without rematerialisation
  std::vector<Decision> *decisions = nullptr;

  static Effect difference(const Forecast &with, const Forecast &without) {
    return {double(with.arena - without.arena), with.step.bytes - without.step.bytes,
            1e3 * (with.step.seconds - without.step.seconds)};
  }

  template <typename F> void eachStepOp(const Module &m, const F &visit) const {
    for (const auto &f : m.functions)
      if (const double calls = callsPerStep(m, f->name); calls > 0)
        for (const Op &op : f->body)
          visit(op, calls);
  }

  void fusion() {
    auto pointwise = [](const Op &op) { return op.def().fusion == FusionKind::pointwise; };
    auto bias = [](const Op &op) {
      return op.is(OpKind::reduce_sum) ||
             (op.is(OpKind::add) && llvm::any_of(op.operands(), [](const Value *v) { return v->type.rank() == 1; }));
    };
    struct Kind {
      const char *option, *kind, *what;
      bool (*counts)(const Op &member);  // null: any group of several ops
    };
    for (const Kind &k : {Kind{"epilogue", "matmul", "matmuls with pointwise ops on their result", pointwise},
                          Kind{"bias", "matmul", "matmuls with a bias or its gradient", bias},
                          Kind{"row", "row", "row groups of several ops", nullptr},
                          Kind{"pointwise", "pointwise", "pointwise groups of several ops", nullptr},
                          Kind{"fold", "fold", "groups of sums that share an operand", nullptr}}) {
      int groups = 0;
      eachStepOp(*plan.planned, [&](const Op &op, double) {
        if (!op.is(OpKind::fused) || op.attrs.getString("kind") != k.kind)
          return;
        int members = 0;
        bool counts = false;
        for (const Op &inner : *op.body)
          if (!inner.isOneOf(OpKind::yield, OpKind::constant)) {
            ++members;
            counts |= k.counts && k.counts(inner);
          }
        groups += k.counts ? counts : members > 1;
      });
      if (groups == 0)
        continue;
      Forecast without = forecast(*runFrom(*plan.joint, "fuse", plan.target,
                                           [&](std::vector<PassUse> &uses) {
                                             setOption(uses, "fuse", k.option, false);
                                             setOption(uses, "remat", "budget", std::string("none"));
                                           }),
                                  rates);
      decisions->push_back(
          {"fuse", k.option, fmt::format("{} {}", groups, k.what), difference(plain, without), "", {}});
    }
  }

  void remat() {
    auto all = llvm::find_if(*decisions, [](const Decision &d) { return d.pass == "remat" && d.name == "all"; });
    Decision d{"remat", "all", "none", {}, "", {}};
    if (all != decisions->end()) {
      d.choice = all->choice;
      decisions->erase(all);
      d.effect = difference(now, plain);
      d.rejected.push_back({"none", difference(plain, now), ""});
    }
    if (d.choice != "full") {
      Forecast full = forecast(
          *runFrom(*plan.joint, "fuse", plan.target,
                   [](std::vector<PassUse> &uses) { setOption(uses, "remat", "budget", std::string("full")); }),
          rates);
      d.rejected.push_back({"full", difference(full, now), "not asked for, and dearer"});
    }
    decisions->push_back(d);
  }

  void order() {
    Forecast without = forecast(*runFrom(*plan.joint, "fuse", plan.target,
                                         [](std::vector<PassUse> &uses) {
                                           removePass(uses, "order");
                                           setOption(uses, "remat", "budget", std::string("none"));
                                         }),
                                rates);
    Effect e = difference(plain, without);
    decisions->push_back(
        {"order", "peak", e.memory < 0 ? "ops moved to just before their use" : "as given", e, "", {}});
  }

  void inPlace() {
    int placed = 0;
    Effect e;
    for (const auto &f : plan.planned->functions) {
      const double times = callsPerStep(*plan.planned, f->name);
      if (times == 0)
        continue;
      for (const Op &op : f->body) {
        if (!op.is(OpKind::write) || rootOf(op.operand(0))->def->loc == "copy")
          continue;
        // Without it the new content lies beside the old one until a copy has moved it there.
        const double bytes = double(op.operand(0)->type.bytes());
        ++placed;
        e.memory = std::min(e.memory, -bytes);
        e.traffic -= times * 2 * bytes;
        e.ms -= times * 1e3 * (2 * bytes / (2 * bytes <= rates.cacheBytes ? rates.cache : rates.dram) + rates.launch);
      }
    }
    decisions->push_back({"settle-writes",
                          "in_place",
                          fmt::format("{} states computed where they lie", placed),
                          e,
                          "memory: of the largest one, as copies could follow each other",
                          {}});
  }

  /// The pass knows bytes; what low-precision contractions save in time is told by the rates.
  void precision() {
    for (Decision &d : *decisions)
      if (d.pass == "precision" && d.name == "compute" && d.effect.ms == 0) {
        MachineRates without = rates;
        without.bf16 = rates.fp32;
        d.effect.ms = 1e3 * (now.step.seconds - costOfStep(*plan.planned, without).seconds);
      }
  }

  void padding() {
    Effect e;
    std::string what;
    for (const auto &s : plan.planned->states) {
      const double bytes = double(s->type.paddedElements() - s->type.elements()) * sizeOf(s->type.dtype);
      if (bytes == 0)
        continue;
      e.memory += bytes;
      for (const Dim &d : s->type.dims)
        if (what.empty() && d.padded != d.logical)
          what = fmt::format("{} -> {}", d.logical, d.padded);
    }
    if (!what.empty() && llvm::none_of(*decisions, [](const Decision &d) { return d.pass == "pad-vocab"; }))
      decisions->push_back({"pad-vocab", "states", what, e, "arena: padding of the states; tiles without tails", {}});
  }

  /// Attention as matmul, mask, softmax, matmul would keep the weights [batch, heads, T, T] of each layer.
  void attention() {
    int count = 0;
    Effect e;
    eachStepOp(*plan.planned, [&](const Op &group, double times) {
      if (!group.is(OpKind::fused))
        return;
      for (const Op &op : *group.body) {
        const bool gradient = op.is(OpKind::attention_grad);
        if (!gradient && !op.is(OpKind::attention))
          continue;
        const Type &out = gradient ? op.operand(0)->type : op.result()->type;  // do or o: [B, T, C]
        if (out.rank() != 3)
          continue;
        const double batch = double(out.dim(0)), T = double(out.dim(1)), C = double(out.dim(2)),
                     heads = double(op.attrs.getInt("n_head"));
        const double scores = 4 * batch * heads * T * T;  // bytes
        const int products = gradient ? 4 : 2, sweeps = gradient ? 4 : 3;
        double seconds = products * 2 * batch * T * T * C / (rates.matmul * rates.fp32) +
                         2 * sweeps * scores / (scores <= rates.cacheBytes / 2 ? rates.cache : rates.dram) +
                         (products + sweeps) * rates.launch;
        count += !gradient;
        if (!gradient)
          e.memory -= scores;
        e.traffic -= times * 2 * (sweeps + products / 2) * scores;
        e.ms += times * 1e3 * (costOf(group, rates).seconds - seconds);
      }
    });
    if (count)
      decisions->push_back({"fuse",
                            "attention",
                            fmt::format("{} as one op", count),
                            e,
                            "against scores and weights in memory; memory: of the weights that backward needs",
                            {}});
  }

  void dropout() {
    int count = 0;
    Effect e;
    eachStepOp(*plan.planned, [&](const Op &group, double times) {
      if (!group.is(OpKind::fused))
        return;
      for (const Op &op : *group.body) {
        if (!op.is(OpKind::dropout))
          continue;
        ++count;
        const double elements = double(op.result()->type.elements());
        e.memory -= elements / 2;  // a byte each, once for the two directions
        e.traffic -= times * elements;
        // Each direction makes the numbers anew; a stored mask would be made once and loaded once.
        e.ms +=
            times * 0.5e3 * (op.def().cost(op).flops / (rates.elementwise * rates.fp32) - 2 * elements / rates.dram);
      }
    });
    if (count)
      decisions->push_back({"fuse",
                            "dropout",
                            fmt::format("{} masks from counters, none stored", count),
                            e,
                            "against masks of one byte per element",
                            {}});
  }

  void microBatch() {
    const Module &m = *plan.planned;
    const int64_t batch = m.attrs.getInt("micro_batch"), times = m.attrs.getInt("accumulate", 1);
    const Function *f = m.function(times > 1 ? "accumulate" : "train_step");
    if (!batch || !f)
      return;
    // Bytes of the batch among those live at the peak, and those of gradient accumulators.
    std::vector<LiveRange> ranges = liveRanges(*f);
    double scaling = 0, best = -1, gradients = 0, kernels = 0;
    for (const LiveRange &r : ranges) {
      double live = 0, part = 0;
      for (const LiveRange &o : ranges)
        if (o.begin <= r.begin && r.begin <= o.end) {
          live += double(o.bytes);
          part += o.value && !o.value->type.isScalar() && o.value->type.dim(0) == batch ? double(o.bytes) : 0;
        }
      if (live > best) {
        best = live;
        scaling = part;
      }
    }
    for (const auto &s : m.states)
      gradients += s->attrs.getString("kind") == "param" ? double(s->type.bytes()) : 0;
    for (const Op &op : f->body)
      kernels += op.is(OpKind::fused);
    Decision d{"micro-batch", "size", fmt::format("{} sequences x {}", batch, times), {}, "", {}};
    auto add = [&](int64_t other) {
      const double calls = double(batch * times) / double(other) - double(times);  // more than now
      Effect e{scaling * (double(other) / double(batch) - 1), 2 * gradients * calls, 0};
      if (times == 1)
        e.memory += gradients;  // accumulators, beside gradients that no longer live to the end
      e.ms = 1e3 * (e.traffic / rates.dram + calls * kernels * rates.launch);
      d.rejected.push_back({fmt::format("{} x {}", other, batch * times / other), e,
                            other < batch ? "takes longer and is not needed to fit" : "takes more memory"});
    };
    if (batch % 2 == 0)
      add(batch / 2);
    if (times % 2 == 0)
      add(batch * 2);
    decisions->push_back(d);
  }
};

std::string signedMs(double ms) { return std::abs(ms) < 0.0005 ? "0" : fmt::format("{:+.3f}", ms); }

}  // namespace

std::string signedBytes(double bytes) {
  return std::abs(bytes) < 0.5 ? "0" : (bytes > 0 ? "+" : "") + formatBytes(bytes);
}

std::string tableOf(const std::vector<Decision> &decisions) {
  std::string out = fmt::format("{:<24} {:<44} {:>12} {:>12} {:>10}\n", "decision", "choice", "arena", "traffic", "ms");
  auto row = [&](const std::string &name, const std::string &choice, const Effect &e) {
    out += fmt::format("{:<24} {:<44} {:>12} {:>12} {:>10}\n", name, choice, signedBytes(e.memory),
                       signedBytes(e.traffic), signedMs(e.ms));
  };
  for (const Decision &d : decisions) {
    row(d.pass + " " + d.name, d.choice, d.effect);
    if (!d.note.empty())
      out += fmt::format("{:24}   {}\n", "", d.note);
    for (const Alternative &a : d.rejected) {
      row("", "  rejected: " + a.choice, a.effect);
      if (!a.why.empty())
        out += fmt::format("{:24}     {}\n", "", a.why);
    }
  }
  return out;
}

Explanation explain(const Plan &plan, double fp32Peak) { return Explainer(plan, fp32Peak).run(); }

}  // namespace gptc
