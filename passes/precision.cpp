// Low precision: in a module whose attribute `compute` is "bf16" or "fp16", contractions and attention read operands of
// that type, and what is stored between kernels is of that type where that is safe. Arithmetic stays f32: a value is
// rounded once, where the chain of ops that makes it ends, and widened where a kernel loads it.
//
// What stays f32 in memory: parameters and moments (but for copies, below), sums over tokens and all that follows from
// them, statistics of rows, the residual stream with its gradient, what a function returns or writes.
//
//   1. fusionGroups says which ops will share a kernel: what passes from one to the next need not be in memory.
//   2. A value is an activation when it depends on a tensor argument other than through a sum over tokens or a
//      statistic of rows. Its uses, those through views included, are
//        low      an operand that an op of autocast class `low` may take in low precision
//        fixed    memory has to hold f32: writes, returns, ops without an element expression
//        stream   an operand of an addition of two activations, from another group: the residual stream and its
//                 gradient
//        other    in another group
//        inside   in the group that computes it
//   3. An activation gets a low copy, one cast behind the op that computes it,
//        - when it has a low use,
//        - when nothing needs it in f32 from memory: the copy then takes its place there,
//        - when two groups or more would read it besides: 2 bytes written, 2 fewer read by each. These are norms of the
//          residual stream (the low-precision norms): their input is rounded, their statistics are not.
//      Low uses read the copy, other uses a cast of it back to f32, which `fuse` makes part of the reading kernel.
//   4. Operands of class `low` that are no activations are parameters: a cast of their own, once in a function. Where a
//      parameter is read, the cast is replaced by a state of kind "low", the parameter's copy, which its update writes
//      in the sweep that updates the parameter. The runtime fills it from the parameter after initialising and loading.
//   5. Results of low ops take the types that follow; those of matmul stay f32 (attribute `out`), so that what is fused
//      behind it starts from the exact sum.
//   6. Ranks gather (shard-tensor) in low precision what is read so. What they add stays f32.
//
// Where plans may call cuBLASLt (Target::features), matmuls are to be calls of it (codegen/cublaslt_matmul.h), as those
// run at twice the rate of a generated kernel on the GPUs that matter. It stores one result, and adds a bias of the
// type of the result. So the residual stream has no low copy beside a matmul that ends in it, and a bias behind which
// all is stored low is read from a low copy, as frameworks with autocast do it.
//
// With `compute` "tf32" nothing changes its type: the tensor cores of NVIDIA's GPUs read f32 and use 10 bits of its
// mantissa. Ops of class `low` whose operands are f32 get the attribute `tf32`, which allows that.
//
// The module attribute `lowered` says that all this has been done. On the joint graph: autodiff has made the backward
// ops, which are lowered by the same rules, and fuse comes next.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/fusion_groups.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"

namespace gptc {

namespace {

struct Summary {
  int64_t rounded = 0, norms = 0, copies = 0;
  double traffic = 0;  // bytes
};

/// Sums over tokens, or over all there is: their results are gradients of parameters, the loss and norms.
bool sumsTokens(const Op &op) {
  const FusionKind kind = op.def().fusion;
  return summedTokenDims(op) > 0 || kind == FusionKind::fold || kind == FusionKind::reduce_all;
}

bool isLowOp(const Op &op) {
  const Autocast &a = op.def().autocast;
  return a == AutocastClass::low && llvm::all_of(a.lowOperands, [&](unsigned i) {
           return i >= op.numOperands() || op.operand(i)->type.dtype != DType::f64;
         });
}

bool readsLow(const Op &op, unsigned operand) {
  return isLowOp(op) && llvm::is_contained(op.def().autocast.lowOperands, operand);
}

class Lowering {
public:
  Lowering(Module &m, Function &f, DType low, bool library)
      : f(f), low(low), library(library), groups(fusionGroups(m, f)) {
    for (const Op &op : f.body)
      if (op.is(OpKind::matmul))
        matmulGroups.insert(groupOf(&op));
  }

  Summary run() {
    markActivations();
    llvm::SmallVector<Value *, 8> arguments;
    for (auto &a : f.body.args)
      arguments.push_back(a.get());
    for (Value *a : arguments)
      lowerUses(a);
    std::vector<Op *> ops;
    for (Op &op : f.body)
      ops.push_back(&op);
    for (Op *op : ops) {
      if (isLowOp(*op))
        lowerOp(*op);
      if (!op->is(OpKind::reshape))
        for (unsigned i = 0; i < op->numResults(); ++i)
          lowerUses(op->result(i));
    }
    if (library)
      for (Op *op : ops)
        lowerBias(*op);
    std::vector<Op *> gathers;
    for (Op &op : f.body)
      if (op.is(OpKind::all_gather))
        gathers.push_back(&op);
    for (Op *op : gathers)
      gatherNarrow(*op);
    return summary;
  }

private:
  struct Use {
    Op *user;
    unsigned operand;
    Value *alias;  // the value or a view of it
  };

  Function &f;
  const DType low;
  const bool library;
  const llvm::DenseMap<const Op *, int> groups;
  llvm::DenseSet<int> matmulGroups;
  llvm::DenseSet<const Value *> activations;
  llvm::DenseMap<const Value *, Value *> narrow, wide;  // casts that are there already
  Summary summary;

  // ---- step 2 ----

  void markActivations() {
    for (const auto &a : f.body.args)
      if (a->type.rank() > 0)
        activations.insert(a.get());
    for (const Op &op : f.body) {
      bool depends = llvm::any_of(op.operands(), [&](const Value *v) { return activations.contains(v); });
      if (!depends || sumsTokens(op))
        continue;
      for (unsigned i = 0; i < op.numResults(); ++i) {
        bool statistic = op.def().fusion == FusionKind::row && op.result(i)->type.rank() < op.operand(0)->type.rank();
        if (!statistic)
          activations.insert(op.result(i));
      }
    }
  }

  static void collectUses(Value *v, std::vector<Use> &uses) {
    llvm::SmallVector<Op *, 8> users(v->users());
    users.erase(std::unique(users.begin(), users.end()), users.end());
    for (Op *user : users) {
      if (user->is(OpKind::reshape)) {
        collectUses(user->result(), uses);
        continue;
      }
      for (unsigned i = 0; i < user->numOperands(); ++i)
        if (user->operand(i) == v)
          uses.push_back({user, i, v});
    }
  }

  int groupOf(const Op *op) const {
    auto it = groups.find(op);
    return it == groups.end() ? -1 : it->second;
  }

  bool isStream(const Use &u) const {
    return u.user->is(OpKind::add) && u.user->operand(0)->type.sameShape(u.user->operand(1)->type) &&
           activations.contains(u.user->operand(0)) && activations.contains(u.user->operand(1));
  }

  /// Whether a call of the library ends with this addition to the residual stream.
  bool endsInStream(const Op &op) const {
    return library && op.is(OpKind::add) && op.operand(0)->type.sameShape(op.operand(1)->type) &&
           matmulGroups.contains(groupOf(&op));
  }

  // ---- step 3 ----

  void lowerUses(Value *v) {
    if (!activations.contains(v) || (v->type.dtype != DType::f32 && v->type.dtype != low))
      return;
    if (v->def && v->def->is(OpKind::cast) && v->def->operand(0)->type.dtype == low)
      return;                                     // stored in low precision already
    const bool storedLow = v->type.dtype == low;  // what a low op yields by itself
    if (storedLow && !(v->def && isLowOp(*v->def)))
      return;
    std::vector<Use> uses, lowUses, others;
    collectUses(v, uses);
    bool wideInMemory = !v->def;
    llvm::DenseSet<int> readers;
    for (const Use &u : uses) {
      if (readsLow(*u.user, u.operand)) {
        lowUses.push_back(u);
      } else if (storedLow) {
        if (!u.user->is(OpKind::cast))
          others.push_back(u);
      } else if (!u.user->def().lower) {
        wideInMemory = true;
      } else if (v->def && u.alias == v && groupOf(u.user) == groupOf(v->def)) {
        continue;
      } else if (isStream(u)) {
        wideInMemory = true;
      } else {
        others.push_back(u);
        readers.insert(groupOf(u.user));
      }
    }
    const bool pays = v->def && !endsInStream(*v->def) && (wideInMemory ? readers.size() >= 2 : !readers.empty());
    if (!storedLow && lowUses.empty() && !pays)
      return;
    for (const Use &u : lowUses)
      u.user->setOperand(u.operand, storedLow ? u.alias : narrowed(u.alias));
    for (const Use &u : others)
      u.user->setOperand(u.operand, widened(storedLow ? u.alias : narrowed(u.alias)));
    if (storedLow)
      return;
    const double saved = double(sizeOf(DType::f32) - sizeOf(low)) * double(v->type.elements());
    ++summary.rounded;
    summary.norms += wideInMemory && lowUses.empty();
    summary.traffic += (wideInMemory ? double(v->type.elements()) * sizeOf(low) : -saved) -
                       saved * double(readers.size() + lowUses.size());
  }

  Value *cast(Value *v, DType to) {
    Op *def = v->def;
    Builder b(f.body, def ? def->next() : f.body.front());
    if (def) {
      b.loc = def->loc;
      b.layer = def->layer;
    }
    Value *result = b.value(OpKind::cast, {v}, attrs({{"dtype", nameOf(to).str()}}));
    if (activations.contains(v))
      activations.insert(result);
    return result;
  }

  /// The low copy of a value; a view's is the view of the copy.
  Value *narrowed(Value *v) {
    if (Value *done = narrow.lookup(v))
      return done;
    Value *copy;
    if (v->def && v->def->is(OpKind::reshape)) {
      Value *from = narrowed(v->def->operand(0));
      copy = Builder(f.body, v->def->next()).op(OpKind::reshape, {from}, {v->type.withDType(low)})->result();
    } else {
      copy = cast(v, low);
    }
    return narrow[v] = copy;
  }

  Value *widened(Value *v) {
    Value *&done = wide[v];
    if (!done)
      done = cast(v, DType::f32);
    return done;
  }

  // ---- steps 4 and 5 ----

  /// An op of class low whose activations have been lowered.
  void lowerOp(Op &op) {
    for (unsigned i : op.def().autocast.lowOperands)
      if (i < op.numOperands() && op.operand(i)->type.dtype == DType::f32) {
        Value *v = op.operand(i);
        op.setOperand(i, narrowed(v));
        summary.traffic -= double(sizeOf(DType::f32) - sizeOf(low)) * double(v->type.elements());
      }
    if (op.def().hasAttr("out") && op.attrs.getString("out").empty())
      op.attrs.set("out", nameOf(op.result()->type.dtype).str());
    std::vector<Type> types;
    std::string error;
    GPTC_CHECK(op.def().infer(op, types, error), "lowered {}: {}", print(op), error);
    for (unsigned i = 0; i < op.numResults(); ++i) {
      types[i].sharding = op.result(i)->type.sharding;
      op.result(i)->type = types[i];
      for (Op *user : op.result(i)->users())
        retypeViews(*user, types[i].dtype);
    }
  }

  /// Whether memory holds `v` in low precision only.
  bool storedLow(const Value *v) const {
    return llvm::all_of(v->users(), [&](const Op *user) {
      return (user->is(OpKind::cast) && user->result()->type.dtype == low) ||
             (groupOf(user) >= 0 && groupOf(user) == groupOf(v->def) && user->is(OpKind::gelu_tanh) &&
              storedLow(user->result()));
    });
  }

  /// A bias behind a matmul, with all that follows stored low, becomes a low one widened.
  void lowerBias(Op &op) {
    if (!addsBias(op) || !matmulGroups.contains(groupOf(&op)) || !storedLow(op.result()))
      return;
    for (unsigned i = 0; i < 2; ++i) {
      Value *bias = op.operand(i);
      if (bias->type.rank() != 1 || bias->type.dtype != DType::f32 || !bias->def || !bias->def->is(OpKind::read))
        continue;
      Builder b(f.body, &op);
      b.loc = op.loc;
      b.layer = op.layer;
      Value *narrow = b.value(OpKind::cast, {bias}, attrs({{"dtype", nameOf(low).str()}}));
      op.setOperand(i, b.value(OpKind::cast, {narrow}, attrs({{"dtype", std::string("f32")}})));
    }
  }

  /// What all that follows reads in low precision is gathered so: rounding first gives the same for half the bytes.
  void gatherNarrow(Op &op) {
    llvm::SmallVector<Op *, 4> casts(op.result()->users());
    const bool all = op.result()->type.dtype == DType::f32 && !casts.empty() && llvm::all_of(casts, [&](Op *user) {
                       return user->is(OpKind::cast) && user->result()->type.dtype == low;
                     });
    if (!all)
      return;
    Value *piece = narrowed(op.operand(0));
    Builder b(f.body, &op);
    b.loc = op.loc;
    b.layer = op.layer;
    Value *gathered = b.op(OpKind::all_gather, {piece}, {op.result()->type.withDType(low)}, op.attrs)->result();
    for (Op *user : casts) {
      user->result()->replaceAllUsesWith(gathered);
      user->erase();
    }
    op.erase();
  }

  static void retypeViews(Op &view, DType to) {
    if (!view.is(OpKind::reshape) || view.result()->type.dtype == to)
      return;
    view.result()->type.dtype = to;
    for (Op *user : view.result()->users())
      retypeViews(*user, to);
  }
};

// ---- step 4: copies of parameters -----------------------------------------------------------------------------------

State *copyOf(Module &m, const State &p, DType low) {
  const std::string name = "low." + p.name;
  if (State *s = m.state(name))
    return s;
  State *s = addState(m, name, p.type.withDType(low), StateKind::low);
  setFact<&StateFacts::of>(*s, p.name);
  if (hasFact<&StateFacts::cutTensor>(p))
    setFact<&StateFacts::cutTensor>(*s, fact<&StateFacts::cutTensor>(p));
  return s;
}

/// Casts of what a parameter held when it was read become reads of its copy.
void readCopies(Module &m, Function &f, DType low, Summary &summary) {
  for (Op *op = f.body.front(), *next; op; op = next) {
    next = op->next();
    if (!op->is(OpKind::cast) || op->result()->type.dtype != low)
      continue;
    const Op *read = op->operand(0)->def;
    const State *p = read && read->is(OpKind::read) ? m.state(read->state) : nullptr;
    if (!p || kindOf(*p) != StateKind::param)
      continue;
    Builder b(f.body, op);
    b.loc = op->loc;
    b.layer = op->layer;
    op->result()->replaceAllUsesWith(b.read(*copyOf(m, *p, low)));
    op->erase();
    ++summary.copies;
  }
}

/// Every write of a parameter that has a copy writes the copy.
void writeCopies(Module &m, Function &f, DType low, Summary &summary) {
  for (Op *op = f.body.front(), *next; op; op = next) {
    next = op->next();
    State *copy = op->is(OpKind::write) ? m.state("low." + op->state) : nullptr;
    if (!copy || kindOf(*copy) != StateKind::low)
      continue;
    Value *v = op->operand(0), *narrow;
    Builder b(f.body, next);
    if (v->def && updatesParameter(*v->def) && v->index == 0 && !lowCopyOf(*v->def)) {
      v->def->attrs.set("low", nameOf(low).str());
      narrow = v->def->addResult(copy->type);
    } else {
      narrow = b.value(OpKind::cast, {v}, attrs({{"dtype", nameOf(low).str()}}));
    }
    b.write(*copy, narrow);
    summary.traffic += double(copy->type.bytes());
  }
}

// ---- tf32
// ------------------------------------------------------------------------------------------------------------

/// Number of ops that may round.
int64_t allowTF32(Function &f) {
  int64_t n = 0;
  for (Op &op : f.body)
    if (op.def().autocast == AutocastClass::low && llvm::all_of(op.def().autocast.lowOperands, [&](unsigned i) {
          return i >= op.numOperands() || op.operand(i)->type.dtype == DType::f32;
        })) {
      op.attrs.set("tf32", true);
      ++n;
    }
  return n;
}

}  // namespace

bool precision(Module &m, const PassOptions &options) {
  const Compute compute = fact<&PrecisionFacts::compute>(m);
  if (compute == Compute::fp32 || fact<&PhaseFacts::lowered>(m))
    return false;
  if (compute == Compute::tf32) {
    int64_t n = 0;
    for (auto &f : m.functions)
      n += allowTF32(*f);
    setFact<&PhaseFacts::lowered>(m, true);
    record(m, {.pass = "precision",
               .name = "compute",
               .choice = std::string(nameOf(compute)),
               .note = fmt::format("{} contractions may round their operands to 10 bits of mantissa", n)});
    return true;
  }
  const DType low = compute == Compute::bf16 ? DType::bf16 : DType::f16;
  setFact<&PhaseFacts::lowered>(m, true);
  const bool library = options.target && options.target->callsLibrary();
  Summary step;
  for (auto &f : m.functions) {
    Summary s = Lowering(m, *f, low, library).run();
    readCopies(m, *f, low, s);
    if (f->name == "train_step" || f->name == "accumulate")
      step = s;
  }
  for (auto &f : m.functions)
    writeCopies(m, *f, low, step);
  record(m, {.pass = "precision",
             .name = "compute",
             .choice = std::string(nameOf(compute)),
             .effect = {.traffic = step.traffic},
             .note = fmt::format("{} values stored in {}, {} of them beside f32 for norms; {} copies of parameters",
                                 step.rounded, nameOf(compute), step.norms, step.copies)});
  return true;
}

}  // namespace gptc
