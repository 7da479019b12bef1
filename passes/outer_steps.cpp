// Outer steps (DiLoCo, Douillard et al. 2023): ranks along "data" train by themselves for `sync_every` steps, each with
// its part of the global batch and moments of its own, and no gradient goes between them. Then @outer makes their
// parameters equal again.
//
// Module attributes: sync_every, outer_lr, outer_momentum; reduce_order "tree" or "fast" (ir/ops/collective.cpp). With
// sync_every = 1 a module stays as it is. The runtime calls @outer after every sync_every-th step and after the run's
// last one (runtime/train/train_step.cpp).
//
//   1. Each trained parameter gets a state of kind "anchor", its content after the last outer step, and with
//      outer_momentum above 0 a moment outer.NAME. Both are the same on all ranks. Loading fills the anchor, as
//      checkpoints are written when it is the parameter.
//   2. @outer takes what a rank has moved, anchor - parameter, for a gradient. The mean over ranks, added in the order
//      of reduce_order, goes through sgd with Nesterov momentum. The result is the new anchor and the new parameter.
//   3. Moments of the optimizer differ between ranks: they become each rank's own (passes/analysis/whole_ranks.h).
//
// Runs behind optimizer, whose moments it cuts, and before precision, which writes low copies wherever a parameter is
// written. partition leaves such a module alone.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/whole_ranks.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"
#include "support/words.h"

namespace gptc {

namespace {

/// Throws UserError for what outer steps are not for.
void requireWholeRanks(const Module &m) {
  const WholeRanks ranks = {
      .setting = fmt::format("sync_every = {}", fact<&ParallelFacts::syncEvery>(m)),
      .help = "outer steps are for ranks of which each trains the whole model with one shard of the batch",
      .apart = true};
  ranks.require(m);
  for (const auto &s : m.states)
    if (isTrained(*s) && (s->type.dtype != DType::f32 || s->type.rank() == 0))
      ranks.refuse(fmt::format("a parameter @{} : {}", s->name, s->type.str()));
}

class OuterSteps {
public:
  explicit OuterSteps(Module &m) : m(m), facts(factsOf<ParallelFacts>(m)) {}
  int64_t bytesSent = 0, bytesHeld = 0;

  void run() {
    ofEachRank();
    std::vector<State *> params;
    for (const auto &s : m.states)
      if (isTrained(*s))
        params.push_back(s.get());
    Builder b(m.addFunction("outer")->body);
    b.loc = "outer";
    Value *lr = b.constant(facts.outerLr), *scale = b.constant(1.0 / double(facts.data));
    for (const State *p : params)
      step(b, *p, lr, scale);
    b.ret({});
  }

private:
  Module &m;
  const ParallelFacts facts;

  /// Step 3.
  void ofEachRank() {
    if (facts.data == 1)
      return;
    for (const auto &s : m.states)
      if (kindOf(*s) == StateKind::moment)
        makeEachRanksOwn(*s, facts.data);
  }

  /// Steps 1 and 2.
  void step(Builder &b, const State &p, Value *lr, Value *scale) {
    State *anchor = addState(m, "anchor." + p.name, p.type, StateKind::anchor);
    setFact<&StateFacts::of>(*anchor, p.name);
    State *moment = facts.outerMomentum > 0 ? addState(m, "outer." + p.name, p.type, StateKind::moment) : nullptr;
    bytesSent += p.type.bytes();
    bytesHeld += (moment ? 2 : 1) * p.type.bytes();

    Value *before = b.read(*anchor), *moved = b.value(OpKind::sub, {before, b.read(p)});
    if (facts.data > 1)
      moved = b.value(OpKind::all_reduce, {moved},
                      attrs({{"axis", std::string("data")},
                             {"ranks", facts.data},
                             {"order", std::string(nameOf(facts.reduceOrder))}}));
    llvm::SmallVector<Value *, 5> operands = {before, moved, lr, scale};
    AttrMap how;
    if (moment) {
      operands.push_back(b.read(*moment));
      how = attrs({{"momentum", facts.outerMomentum}, {"nesterov", true}});
    }
    Op *update = b.op(OpKind::sgd, operands, std::move(how));
    b.write(*anchor, update->result(0));
    if (moment)
      b.write(*moment, update->result(1));
    b.write(p, update->result(0));
  }
};

}  // namespace

bool outerSteps(Module &m, const PassOptions &) {
  const int64_t every = fact<&ParallelFacts::syncEvery>(m);
  if (every <= 1 || m.function("outer") || !(m.function("train_step") || m.function("update")))
    return false;
  requireWholeRanks(m);
  OuterSteps pass(m);
  pass.run();
  record(m, {.pass = "outer-steps",
             .name = "sync_every",
             .choice = fmt::format("every {} steps", every),
             .effect = {.memory = double(pass.bytesHeld)},
             .note = fmt::format("ranks add up {} then, and no gradients in the steps between",
                                 formatBytes(double(pass.bytesSent)))});
  return true;
}

}  // namespace gptc
