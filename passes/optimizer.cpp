// Appends the optimizer to the function that returns (loss, gradients), which autodiff marks with the attribute
// `grads`. The function then returns (loss, grad_norm, lr) and writes parameters, moments and step.
//
//   1. The global norm is the square root of the sum of the gradients' sum_squares, added in state order. Gradients
//      that are divided along "tensor" (shard-tensor) come first, and their sum is added over those ranks. The other
//      gradients are equal on all of them. With logical parts (module attribute logical_tensor) the squares of each
//      part are summed over these gradients, and then the parts in a tree: squares of each place that parts share,
//      which no cut changes, then a group's places of a part, the groups, the parameters.
//   2. clip_scale: min(1, grad_clip / norm), or -1 if the norm is not finite. Updates with -1 change nothing.
//   3. lr_schedule from @step and the module attributes lr, schedule, warmup, decay_steps, steps,
//      min_lr_ratio.
//   4. Each trained parameter gets the update that the module attribute `optimizer` names. The attributes lr_scale,
//      weight_decay, beta1 and beta2 of its state (ir/graph.h) override the module attributes. The module's weight
//      decay applies only to states with decay=true.
//        adamw      moments m.NAME and v.NAME. With optimizer_state = "bf16" they are bf16, rounded stochastically.
//        sgd        with the module attribute momentum above 0 one moment, momentum.NAME, of the same dtype
//        adafactor  moments row.NAME and column.NAME of a matrix, else v.NAME; with first_moment above 0 update.NAME
//                   too. Step 1 uses the sums of squares of a matrix's rows as well. Each stage is made for all
//                   parameters before the next one, so that many small kernels may run together. If ranks along
//                   "tensor" have columns of a matrix, its row sums are added over them; if they have rows, its column
//                   sums.
//   5. @step = @step + 1.
//   6. If there is a state @loss_scale, autodiff has multiplied the gradients by it. The norm and the factor of step 2
//      are divided by it, next_loss_scale updates it and @good_steps, and the function returns it too.
//   7. Earlier writes (zeros into accumulators) move to the end, after the last use of the contents that they replace.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "support/diagnostics.h"

#include <map>

namespace gptc {

namespace {

// The stream of stochastic rounding is this plus the index of the parameter. Initial values and dropout have lower
// streams.
constexpr int64_t momentStreams = 1 << 24;

/// The attribute `fold` of column_squares: rows of one partial sum.
constexpr int64_t columnFold = 256;

class Optimizer {
public:
  Optimizer(Module &m, Function &f) : m(m), facts(factsOf<OptimizerFacts>(m)), ret(f.body.back()), b(f.body, ret) {}

  void append(Function &f) {
    findParameters(f);
    b.loc = "optimizer";
    Op *const last = ret->prev();
    normAndScale();
    now = b.read(*need("step", "state @step : i64[] {kind=\"counter\"}"));
    AttrMap schedule = attrs({{"kind", std::string(nameOf(facts.schedule))},
                              {"lr", facts.lr},
                              {"warmup", facts.warmup},
                              {"steps", facts.steps},
                              {"min_ratio", facts.minLrRatio}});
    if (facts.schedule == LrSchedule::wsd && facts.decaySteps >= 0)
      schedule.set("decay", facts.decaySteps);
    lr = b.value(OpKind::lr_schedule, {now}, schedule);
    const bool bf16 = fact<&PrecisionFacts::optimizerState>(m) == MomentType::bf16;
    switch (facts.optimizer) {
    case OptimizerKind::adamw:
      adamw(bf16);
      break;
    case OptimizerKind::sgd:
      sgd(bf16);
      break;
    case OptimizerKind::adafactor:
      adafactor();
      break;
    }
    b.write(*m.state("step"), b.value(OpKind::add, {now, b.constant(1, now->type)}));
    moveLossScale();
    moveEarlierWrites(last);
    llvm::SmallVector<Value *, 4> results = {ret->operand(0), norm, lr};
    if (lossScale)
      results.push_back(lossScale);
    b.ret(results);
    ret->erase();
    eraseFact<&FunctionFacts::grads>(f);
  }

private:
  struct Trained {
    const State *state;
    Value *gradient;
    Value *rows = nullptr;  // adafactor, of a matrix: the sum of squares of each row of the gradient
  };

  Module &m;
  const OptimizerFacts facts;
  Op *const ret;
  Builder b;
  std::vector<Trained> params;
  Value *norm = nullptr, *scale = nullptr, *lossScale = nullptr, *now = nullptr, *lr = nullptr;
  Value *place = nullptr;  // axis_index of this rank along "tensor"
  std::map<double, Value *> scaledRates;

  const State *need(const char *name, const char *declaration) {
    const State *s = m.state(name);
    if (!s)
      throw UserError(ErrorCode::GirInvalid, fmt::format("the module has no state @{}", name),
                      fmt::format("add: {}", declaration));
    return s;
  }

  void findParameters(const Function &f) {
    for (const auto &s : m.states)
      if (isTrained(*s))
        params.push_back({s.get(), nullptr});
    if (params.empty() || ret->numOperands() != params.size() + 1)
      throw UserError(ErrorCode::GirInvalid, fmt::format("@{} returns {} values; a loss and {} gradients were expected",
                                                         f.name, ret->numOperands(), params.size()));
    for (size_t i = 0; i < params.size(); ++i)
      params[i].gradient = ret->operand(i + 1);
  }

  bool isMatrix(const Trained &p) const { return p.state->type.rank() == 2; }
  /// Whether each rank along "tensor" has a part of the parameter.
  static bool isCut(const Trained &p) { return hasFact<&StateFacts::cutTensor>(*p.state); }

  /// The sum of squares of all gradients that logical parts share, on all ranks; null if there is none.
  Value *squaresOfParts() {
    const int64_t parts = LogicalParts::ofRank(m);
    Value *sums = nullptr;  // of each part of this rank
    for (const Trained &p : params) {
      const std::optional<LogicalParts> shared = LogicalParts::of(m, *p.state);
      if (!shared)
        continue;
      Value *g = p.gradient, *places = !isMatrix(p) ? b.value(OpKind::mul, {g, g})
                                       : shared->dim == 0
                                           ? b.value(OpKind::row_squares, {g})
                                           : b.value(OpKind::column_squares, {g}, attrs({{"fold", columnFold}}));
      int64_t start = 0;
      for (const int64_t group : shared->groups) {
        Value *of =
            shared->groups.size() == 1
                ? places
                : b.value(OpKind::slice, {places}, attrs({{"dim", int64_t(0)}, {"start", start}, {"size", group}}));
        of = b.op(OpKind::reshape, {of}, {Type(places->type.dtype, {parts, group / parts})})->result();
        of = b.value(OpKind::row_sum, {of});
        sums = sums ? b.value(OpKind::add, {sums, of}) : of;
        start += group;
      }
    }
    if (!sums)
      return nullptr;
    std::vector<Value *> terms;
    for (int64_t i = 0; i < parts; ++i)
      terms.push_back(parts == 1 ? sums
                                 : b.value(OpKind::slice, {sums},
                                           attrs({{"dim", int64_t(0)}, {"start", i}, {"size", int64_t(1)}})));
    Value *sum = b.op(OpKind::reshape, {sumInTree(b, std::move(terms))}, {Type::scalar(sums->type.dtype)})->result();
    return Mesh::of(m).tensor > 1 ? overTensor(sum) : sum;
  }

  void normAndScale() {
    const bool inParts = fact<&ParallelFacts::logicalTensor>(m) > 1;
    Value *sum = inParts ? squaresOfParts() : nullptr;
    auto addSquares = [&](bool cut) {
      for (Trained &p : params) {
        if (inParts ? hasFact<&StateFacts::logicalParts>(*p.state) : isCut(p) != cut)
          continue;
        Value *squares;
        if (facts.optimizer == OptimizerKind::adafactor && isMatrix(p)) {
          p.rows = b.value(OpKind::row_squares, {p.gradient});
          squares = total(p.rows);
        } else {
          squares = b.value(OpKind::sum_squares, {p.gradient});
        }
        sum = sum ? b.value(OpKind::add, {sum, squares}) : squares;
      }
    };
    if (!inParts) {
      addSquares(true);
      if (sum)
        sum = overTensor(sum);
    }
    addSquares(false);
    norm = b.value(OpKind::sqrt, {sum});
    if (const State *s = m.state("loss_scale"))
      lossScale = b.read(*s);
    if (lossScale)  // a power of two: exact
      norm = b.value(OpKind::div, {norm, lossScale});
    scale = b.value(OpKind::clip_scale, {norm}, attrs({{"max", facts.gradClip}}));
    if (lossScale)
      scale = b.value(OpKind::div, {scale, lossScale});
  }

  /// Adds the terms of all ranks along "tensor".
  Value *overTensor(Value *terms) {
    const int64_t ranks = Mesh::of(m).tensor;
    return b.value(
        OpKind::all_reduce, {terms},
        attrs({{"axis", std::string("tensor")}, {"ranks", ranks}, {"order", std::string(tensorOrder(ranks))}}));
  }

  Value *total(Value *rows) {
    return rows->type.isScalar() ? rows
                                 : b.value(OpKind::reduce_sum, {rows}, attrs({{"lead", int64_t(rows->type.rank())}}));
  }

  // ---- attributes of parameters -------------------------------------------------------------------------------------

  Value *rateOf(const State &p) {
    const double factor = fact<&TrainedFacts::lrScale>(p);
    if (factor == 1)
      return lr;
    Value *&scaled = scaledRates[factor];
    if (!scaled)
      scaled = b.value(OpKind::mul, {lr, b.constant(factor)});
    return scaled;
  }

  double decayOf(const State &p) const {
    const bool decays = fact<&TrainedFacts::decay>(p);
    return fact<&TrainedFacts::weightDecay>(p).value_or(decays ? facts.weightDecay : 0.0);
  }

  // ---- updates ------------------------------------------------------------------------------------------------------

  State *momentOf(const char *which, const State &p, const Type &type) {
    std::string name = fmt::format("{}.{}", which, p.name);
    if (State *s = m.state(name))
      return s;
    State *s = addState(m, name, type, StateKind::moment);
    if (hasFact<&StateFacts::cutTensor>(p) && type.sameShape(p.type))
      setFact<&StateFacts::cutTensor>(*s, fact<&StateFacts::cutTensor>(p));
    return s;
  }

  /// A moment of a matrix with one value for each index of its dimension `dim`, divided along "tensor" like that
  /// dimension.
  State *statisticOf(const char *which, const Trained &p, unsigned dim) {
    const std::optional<Cut> cut = Cut::of(*p.state, "tensor");
    const bool parts = cut && cut->dim == dim;
    const Type &t = p.state->type;
    const bool known = m.state(fmt::format("{}.{}", which, p.state->name));
    State *s = momentOf(which, *p.state, Type(t.dtype, {parts ? cut->whole : t.dims[dim]}));
    if (parts && !known)
      Cut{0, cut->whole, cut->groups}.apply(*s, "tensor", Mesh::of(m).tensor);
    return s;
  }

  /// The seed of stochastic rounding; null unless moments are bf16.
  Value *seedFor(bool bf16) {
    return bf16 ? b.read(*need("rng_seed", "state @rng_seed : i64[] {kind=\"counter\"}, for stochastic rounding"))
                : nullptr;
  }

  /// The operand index0 of an update with a seed, for a parameter that is divided along "tensor": ranks then round
  /// their parts by different random numbers. Null otherwise: all ranks round a whole parameter by the same numbers.
  Value *index0For(const Value *seed, const Trained &p) {
    if (!seed || !isCut(p))
      return nullptr;
    if (!place)
      place = b.value(OpKind::axis_index, {}, attrs({{"axis", std::string("tensor")}, {"ranks", Mesh::of(m).tensor}}));
    return b.value(OpKind::mul, {place, b.constant(double(p.state->type.elements()), Type::scalar(DType::i64))});
  }

  void adamw(bool bf16) {
    Value *seed = seedFor(bf16);
    for (size_t i = 0; i < params.size(); ++i) {
      const State &p = *params[i].state;
      const Type moments = p.type.withDType(bf16 ? DType::bf16 : p.type.dtype);
      State *m1 = momentOf("m", p, moments), *m2 = momentOf("v", p, moments);
      AttrMap at = attrs({{"beta1", fact<&TrainedFacts::beta1>(p).value_or(facts.beta1)},
                          {"beta2", fact<&TrainedFacts::beta2>(p).value_or(facts.beta2)},
                          {"eps", facts.eps.value_or(1e-8)},
                          {"weight_decay", decayOf(p)}});
      if (bf16)
        at.set("stream", momentStreams + int64_t(i));
      Value *rate = rateOf(p);
      Op *adam = b.op(
          OpKind::adamw,
          {b.read(p), params[i].gradient, b.read(*m1), b.read(*m2), rate, now, scale, seed, index0For(seed, params[i])},
          at);
      b.write(p, adam->result(0));
      b.write(*m1, adam->result(1));
      b.write(*m2, adam->result(2));
    }
  }

  void sgd(bool bf16) {
    const double momentum = facts.momentum;
    Value *seed = momentum > 0 ? seedFor(bf16) : nullptr;
    for (size_t i = 0; i < params.size(); ++i) {
      const State &p = *params[i].state;
      State *moment = nullptr;
      AttrMap at = attrs({{"weight_decay", decayOf(p)}});
      llvm::SmallVector<Value *, 8> operands = {b.read(p), params[i].gradient, rateOf(p), scale};
      if (momentum > 0) {
        moment = momentOf("momentum", p, p.type.withDType(bf16 ? DType::bf16 : p.type.dtype));
        operands.push_back(b.read(*moment));
        at.set("momentum", momentum);
        at.set("nesterov", facts.nesterov);
      }
      if (seed) {
        operands.append({now, seed});
        if (Value *index0 = index0For(seed, params[i]))
          operands.push_back(index0);
        at.set("stream", momentStreams + int64_t(i));
      }
      Op *step = b.op(OpKind::sgd, operands, at);
      b.write(p, step->result(0));
      if (moment)
        b.write(*moment, step->result(1));
    }
  }

  void adafactor() {
    const double firstMoment = facts.firstMoment;
    struct Step {
      Value *v = nullptr, *column = nullptr, *total = nullptr;  // column and total only of a matrix
      AttrMap statistics;
      Value *content = nullptr, *size = nullptr;
    };
    std::vector<Step> steps(params.size());
    auto move = [&](State *s, Value *squares, int64_t count) {
      Value *moved = b.value(OpKind::adafactor_moment, {b.read(*s), squares, scale, now}, attrs({{"count", count}}));
      b.write(*s, moved);
      return moved;
    };
    for (size_t i = 0; i < params.size(); ++i) {
      const State &p = *params[i].state;
      Value *g = params[i].gradient;
      Step &s = steps[i];
      s.statistics = attrs({{"eps", facts.eps.value_or(0x1p-23)}});
      if (!isMatrix(params[i])) {
        s.v = move(momentOf("v", p, p.type), b.value(OpKind::mul, {g, g}), 1);
        continue;
      }
      const std::optional<Cut> cut = Cut::of(p, "tensor");
      const Type whole = wholeType(p);
      Value *rows = params[i].rows, *columns = b.value(OpKind::column_squares, {g}, attrs({{"fold", columnFold}}));
      if (cut)
        (cut->dim == 0 ? columns : rows) = overTensor(cut->dim == 0 ? columns : rows);
      s.v = move(statisticOf("row", params[i], 0), rows, whole.dim(1));
      s.column = move(statisticOf("column", params[i], 1), columns, whole.dim(0));
      s.total = total(s.v);
      if (cut && cut->dim == 0)
        s.total = overTensor(s.total);
      s.statistics.set("rows", whole.dim(0));
    }
    for (size_t i = 0; i < params.size(); ++i) {
      const State &p = *params[i].state;
      Step &s = steps[i];
      s.content = b.read(p);
      auto all = [&](Value *rows) { return isCut(params[i]) ? overTensor(total(rows)) : total(rows); };
      Value *updates = all(b.value(OpKind::adafactor_squares,
                                   withStatistics({params[i].gradient, scale}, s.v, s.column, s.total), s.statistics));
      Value *parameters = facts.relativeStep ? all(b.value(OpKind::row_squares, {s.content})) : nullptr;
      s.size = b.value(OpKind::adafactor_size, {updates, rateOf(p), now, parameters},
                       attrs({{"count", wholeType(p).elements()}}));
    }
    for (size_t i = 0; i < params.size(); ++i) {
      const State &p = *params[i].state;
      const Step &s = steps[i];
      llvm::SmallVector<Value *, 9> operands =
          withStatistics({s.content, params[i].gradient, scale, rateOf(p), s.size}, s.v, s.column, s.total);
      AttrMap at = s.statistics;
      at.set("weight_decay", decayOf(p));
      State *moment = firstMoment > 0 ? momentOf("update", p, p.type) : nullptr;
      if (moment) {
        operands.push_back(b.read(*moment));
        at.set("beta1", firstMoment);
      }
      Op *step = b.op(OpKind::adafactor, operands, at);
      b.write(p, step->result(0));
      if (moment)
        b.write(*moment, step->result(1));
    }
  }

  static llvm::SmallVector<Value *, 9> withStatistics(llvm::ArrayRef<Value *> operands, Value *v, Value *column,
                                                      Value *total) {
    llvm::SmallVector<Value *, 9> all(operands);
    all.push_back(v);
    if (column)
      all.append({column, total});
    return all;
  }

  // ---- the rest of the step -----------------------------------------------------------------------------------------

  void moveLossScale() {
    if (!lossScale)
      return;
    const State *good = m.state("good_steps");
    if (!good)
      throw UserError(ErrorCode::GirInvalid, "the module has a state @loss_scale and no @good_steps",
                      "add: state @good_steps : i64[] {kind=\"counter\"}");
    Op *next = b.op(OpKind::next_loss_scale, {lossScale, b.read(*good), norm});
    b.write(*m.state("loss_scale"), next->result(0));
    b.write(*good, next->result(1));
  }

  /// Step 7. `last` is the last op, apart from `return`, that was there before this pass.
  void moveEarlierWrites(Op *last) {
    llvm::SmallVector<Op *, 16> earlier;
    for (Op *op = last; op; op = op->prev())
      if (op->is(OpKind::write))
        earlier.push_back(op);
    for (Op *op : llvm::reverse(earlier))
      op->moveBefore(ret);
  }
};

}  // namespace

bool optimizer(Module &m, const PassOptions &) {
  bool changed = false;
  for (auto &f : m.functions)
    if (hasFact<&FunctionFacts::grads>(*f)) {
      Optimizer(m, *f).append(*f);
      changed = true;
    }
  return changed;
}

}  // namespace gptc
