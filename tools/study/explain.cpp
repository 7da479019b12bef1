// 1. Take decisions that a pass recorded as they are.
// 2. For others, recompile the plan's joint graph with the decision changed, down to the memory plan, and compare:
//    arena bytes exactly, traffic and time by the cost model. If there is a memory budget, compile both without it, so
//    that it does not mask the difference.
// 3. Decisions that the joint graph cannot undo (precision, padding, attention as one op, micro-batch) are compared
//    with the model compiled anew from its description, if the plan has one.
// 4. Decisions that no pass can change (masks from counters, states in place) are computed from the shapes.
#include "tools/study/explain.h"

#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/fusion_groups.h"
#include "passes/analysis/liveness.h"
#include "support/diagnostics.h"
#include "support/words.h"
#include "tools/study/step_ops.h"

#include <algorithm>
#include <cmath>
#include <optional>
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
    plain = fromJoint([](std::vector<PassUse> &) {});
    fusion();
    remat();
    order();
    inPlace();
    sweep();
    dropout();
    if (!plan.model.empty()) {
      padding();
      precision();
      attention();
      microBatch();
    }
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

  using Edit = std::function<void(std::vector<PassUse> &)>;
  Forecast fromJoint(const Edit &edit) const {
    return forecast(*runFrom(*plan.joint, "fuse", plan.target,
                             [&](std::vector<PassUse> &uses) {
                               setOption(uses, "remat", "budget", std::string("none"));
                               edit(uses);
                             }),
                    rates);
  }

  /// The same model with other settings, without rematerialisation; nullopt if that is invalid, because some mesh
  /// shapes do not allow it.
  std::optional<Forecast> fromModel(const std::vector<std::string> &settings, const BuildOptions &build = {},
                                    const Edit &edit = {}) const {
    std::vector<std::string> all = plan.model;
    if (hasFact<&ParallelFacts::zeroStage>(*plan.planned))  // as decided
      all.push_back(fmt::format("parallel.zero_stage={}", fact<&ParallelFacts::zeroStage>(*plan.planned)));
    all.insert(all.end(), settings.begin(), settings.end());
    try {
      Config config = loadConfig("", all, [](const std::string &) { return int64_t(0); });
      return forecast(*runFrom(*buildModel(config, build), "canonicalize", plan.target,
                               [&](std::vector<PassUse> &uses) {
                                 setOption(uses, "remat", "budget", std::string("none"));
                                 if (edit)
                                   edit(uses);
                               }),
                      rates);
    } catch (const UserError &) {
      return std::nullopt;
    }
  }

  void fusion() {
    auto pointwise = [](const Op &op) { return op.def().fusion == FusionKind::pointwise; };
    auto bias = [](const Op &op) { return op.is(OpKind::reduce_sum) || addsBias(op); };
    struct Kind {
      const char *option;
      RecipeKind kind;
      const char *what;
      bool (*counts)(const Op &member);  // null: any group of several ops
    };
    for (const Kind &k : {Kind{"epilogue", RecipeKind::matmul, "matmuls with pointwise ops on their result", pointwise},
                          Kind{"bias", RecipeKind::matmul, "matmuls with a bias or its gradient", bias},
                          Kind{"row", RecipeKind::row, "row groups of several ops", nullptr},
                          Kind{"pointwise", RecipeKind::pointwise, "pointwise groups of several ops", nullptr},
                          Kind{"fold", RecipeKind::fold, "groups of sums that share an operand", nullptr},
                          Kind{"row_fold", RecipeKind::row_fold, "rows with sums over tokens of them", nullptr}}) {
      int groups = 0;
      forEachOpOfStep(*plan.planned, [&](const Op &op, double) {
        if (!op.is(OpKind::fused) || kindOf(op) != k.kind)
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
      Forecast without = fromJoint([&](std::vector<PassUse> &uses) { setOption(uses, "fuse", k.option, false); });
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
      Forecast full =
          fromJoint([](std::vector<PassUse> &uses) { setOption(uses, "remat", "budget", std::string("full")); });
      d.rejected.push_back({"full", difference(full, now), "not asked for, and dearer"});
    }
    decisions->push_back(d);
  }

  void order() {
    Effect e = difference(plain, fromJoint([](std::vector<PassUse> &uses) { removePass(uses, "order"); }));
    decisions->push_back(
        {"order", "peak", e.memory < 0 ? "ops moved to just before their use" : "as given", e, "", {}});
  }

  void inPlace() {
    int placed = 0;
    Effect e;
    forEachOpOfStep(*plan.planned, [&](const Op &op, double times) {
      if (!op.is(OpKind::write) || rootOf(op.operand(0))->def->loc == "copy")
        return;
      // Otherwise the new content would need separate memory until a copy has moved it.
      const double bytes = double(op.operand(0)->type.bytes());
      ++placed;
      e.memory = std::min(e.memory, -bytes);
      e.traffic -= times * 2 * bytes;
      e.ms -= times * 1e3 * (2 * bytes / (2 * bytes <= rates.cacheBytes ? rates.cache : rates.dram) + rates.launch);
    });
    decisions->push_back({"settle-writes",
                          "in_place",
                          fmt::format("{} states computed where they lie", placed),
                          e,
                          "memory: of the largest one, as copies could follow each other",
                          {}});
  }

  void precision() {
    const auto facts = factsOf<PrecisionFacts>(*plan.planned);
    choice("compute", nameOf(facts.compute), {"fp32", "bf16"});
    // Adafactor's few statistics are always f32.
    if (fact<&OptimizerFacts::optimizer>(*plan.planned) != OptimizerKind::adafactor)
      choice("optimizer_state", nameOf(facts.optimizerState), {"fp32", "bf16"});
    if (facts.compute == Compute::bf16 || facts.compute == Compute::fp16)
      choice("residual", nameOf(facts.residual), {"fp32", "compute"});
  }

  /// A key of [precision] against its other values, of which the first rounds nothing.
  void choice(const char *key, llvm::StringRef chosen, llvm::ArrayRef<const char *> values) {
    auto with = [&](const char *value) { return fromModel({fmt::format("precision.{}={}", key, value)}); };
    auto d = llvm::find_if(*decisions, [&](const Decision &d) { return d.pass == "precision" && d.name == key; });
    if (d == decisions->end()) {
      decisions->push_back({"precision", key, chosen.str(), {}, "", {}});
      d = decisions->end() - 1;
    }
    if (chosen != values.front())
      if (std::optional<Forecast> f = with(values.front()))
        d->effect = difference(plain, *f);
    for (const char *value : values)
      if (chosen != value) {
        const std::optional<Forecast> other = with(value);
        if (!other)
          continue;
        const Effect e = difference(*other, plain);
        if (value == llvm::StringRef(values.front()))
          d->rejected.push_back({value, e, "another precision was asked for"});
        else if (e.memory < 0 || e.ms < 0)
          d->rejected.push_back({value, e, "not asked for: it rounds"});
      }
  }

  void padding() {
    auto without = [](std::vector<PassUse> &uses) { removePass(uses, "pad-vocab"); };
    for (const auto &s : plan.planned->states)
      for (const Dim &d : s->type.dims)
        if (d.padded != d.logical) {
          if (std::optional<Forecast> f = fromModel({}, {}, without))
            decisions->push_back({"pad-vocab",
                                  "states",
                                  fmt::format("{} -> {}", d.logical, d.padded),
                                  difference(plain, *f),
                                  "tiles of the classifier without tails",
                                  {}});
          return;
        }
  }

  /// Compared with the optimizer as separate pointwise ops, one sweep each. Adafactor already consists of several ops
  /// and is left out.
  void sweep() {
    int count = 0;
    forEachOpOfStep(*plan.joint, [&](const Op &op, double) { count += op.isOneOf(OpKind::adamw, OpKind::sgd); });
    if (!count)
      return;
    auto separate = [](std::vector<PassUse> &uses) { setOption(uses, "fuse", "pointwise", false); };
    Forecast primitive = fromJoint([&](std::vector<PassUse> &uses) {
      separate(uses);
      uses.insert(uses.begin(), parsePipeline("primitive-optimizer", &plan.target)[0]);
    });
    decisions->push_back(
        {"fuse",
         "optimizer",
         fmt::format("{} of {} parameters as one sweep",
                     fact<&OptimizerFacts::optimizer>(*plan.joint) == OptimizerKind::sgd ? "SGD" : "AdamW", count),
         difference(fromJoint(separate), primitive),
         "against the ops of its formula one by one",
         {}});
  }

  /// Compared with matmul, mask, softmax, matmul and weights [batch, heads, T, T] of each layer in memory.
  void attention() {
    int count = 0;
    forEachOpOfStep(*plan.planned, [&](const Op &group, double) {
      if (group.is(OpKind::fused))
        for (const Op &op : *group.body)
          count += op.is(OpKind::attention);
    });
    if (std::optional<Forecast> f = count ? fromModel({}, {.decomposedAttention = true}) : std::nullopt)
      decisions->push_back({"fuse",
                            "attention",
                            fmt::format("{} as one op", count),
                            difference(plain, *f),
                            "against scores and weights in memory",
                            {}});
  }

  void dropout() {
    int count = 0;
    Effect e;
    forEachOpOfStep(*plan.planned, [&](const Op &group, double times) {
      if (!group.is(OpKind::fused))
        return;
      for (const Op &op : *group.body) {
        if (!op.is(OpKind::dropout))
          continue;
        ++count;
        const double elements = double(op.result()->type.elements());
        e.memory -= elements / 2;  // one byte per element, shared by both directions
        e.traffic -= times * elements;
        // Each direction regenerates the numbers; a stored mask would be made and loaded once.
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
    const int64_t batch = fact<&BatchFacts::microBatch>(*plan.planned),
                  times = fact<&BatchFacts::accumulate>(*plan.planned);
    Decision d{"micro-batch", "size", fmt::format("{} sequences x {}", batch, times), {}, "", {}};
    auto add = [&](int64_t other) {
      const std::optional<Forecast> f = fromModel({fmt::format("train.micro_batch={}", other)});
      if (!f)
        return;
      const Effect e = difference(*f, plain);
      d.rejected.push_back({fmt::format("{} x {}", other, batch * times / other), e,
                            e.memory < 0 && e.ms > 0 ? "takes longer; what it saves is not needed"
                            : e.memory < 0           ? "not chosen: train.micro_batch"
                            : e.ms < 0               ? "takes more memory"
                                                     : "takes longer and more memory"});
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
