// Low precision. If the module attribute `compute` is "bf16" or "fp16", contractions and attention read operands of
// that type, and values between kernels are stored in it if that is safe. Arithmetic stays f32: a value is rounded
// once, at the end of the chain of ops that computes it, and a kernel widens it when loading it.
//
// These values stay f32 in memory: parameters and moments (apart from copies, step 4), sums over tokens and values that
// depend on them, statistics of rows, the residual stream and its gradient, values that a function returns or writes.
// With the module attribute residual="compute" the residual stream and its gradient are stored as all else is: each
// layer's sum is rounded once, and fewer bytes move.
//
//   1. fusionGroups predicts which ops will share a kernel. Values inside a kernel need no memory.
//   2. A value is an activation if it depends on a tensor argument by a path without a sum over tokens, a statistic of
//      rows or numbers that integers alone give (RoPE's table of the positions of tokens: without them as an argument
//      it is no activation either). Its uses, also through views, are of these kinds:
//        low      an operand that an op of autocast class `low` may take in low precision
//        fixed    memory has to hold f32: writes, returns, ops without an element expression
//        stream   an operand of an addition of two activations, in another group: the residual stream and its gradient.
//                 With residual="compute" such a use is `other`
//        other    another use in another group
//        inside   a use in the group that computes it. Norms on the way to the logits read it rounded all the same:
//                 whether a sum and its norm share a group depends on what stands between them, which in sampling is a
//                 choice of rows
//   3. An activation gets a low copy, by one cast after the op that computes it,
//        - if it has a low use,
//        - if it has an `other` use and no `fixed` or `stream` use: the copy then replaces it in memory,
//        - if two or more groups have `other` uses, or one on the way to the logits: the copy adds 2 bytes of stores
//          per element and saves 2 bytes of loads in each group. These groups are norms of the residual stream (the
//          low-precision norms). Their input is rounded, their statistics are not. One reader suffices in the forward
//          part so that evaluation and sampling, where no backward part reads too, round what training rounds.
//        - if it has an `other` use and a norm `inside` reads it rounded: so does the norm's gradient.
//      Low uses read the copy. Other uses read a cast of it back to f32, which `fuse` copies into the reading kernel.
//   4. Operands of class `low` that are no activations are parameters. Each gets one cast per function. A cast of a
//      parameter's content is replaced by a state of kind "low", the copy of the parameter. The op that updates the
//      parameter writes the copy too. The runtime fills it from the parameter after initialising and loading.
//   5. The result types of low ops are inferred anew. Results of matmul stay f32 (attribute `out`), so that ops fused
//      with it start from the unrounded sum.
//   6. Caches of keys and values hold low values if only attention reads and writes them, as it reads no others.
//   7. An all_gather (shard-tensor) whose users read low precision gathers in low precision. Sums over ranks stay f32.
//
// If plans may call cuBLASLt (Target::features), it is to compute matmuls (codegen/cublaslt_matmul.h), at twice the
// rate of a generated kernel on the GPUs that matter. It stores one result and adds a bias of the type of the result.
// So an f32 residual stream gets no low copy if it ends the group of a matmul, and a bias is read from a low copy if
// its sum is stored in low precision only, as in frameworks with autocast.
//
// With `compute` "tf32" no type changes. Tensor cores of NVIDIA GPUs read f32 and use 10 bits of its mantissa. Ops of
// class `low` whose operands are f32 get the attribute `tf32`, which allows that.
//
// The module attribute `lowered` marks modules on which the pass has run. It runs on the joint graph, after autodiff,
// so that the same rules apply to backward ops, and before fuse.
#include "passes/precision.h"
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/fusion_groups.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"

namespace gptc {

namespace {

struct Summary {
  // Activations with a low copy; those of them that stay f32 in memory too and have no low use; casts of parameters
  // that became reads of copies.
  int64_t rounded = 0, norms = 0, copies = 0;
  double traffic = 0;  // change in bytes
};

/// Whether the op sums over tokens or over all elements. Such results are gradients of parameters, the loss and norms.
bool sumsTokens(const Op &op) {
  const FusionKind kind = op.def().fusion;
  return summedTokenDims(op) > 0 || kind == FusionKind::fold || kind == FusionKind::reduce_all;
}

/// Whether the op is of autocast class `low` and no operand of `lowOperands` is f64.
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
  /// `caches`: names of states that are low.
  Lowering(Function &f, DType low, Residual residual, bool library, const llvm::StringSet<> &caches)
      : f(f), low(low), keepsStream(residual == Residual::fp32), library(library), caches(caches),
        groups(fusionGroups(f)) {
    for (const Op &op : f.body)
      if (op.is(OpKind::matmul))
        matmulGroups.insert(groupOf(&op));
  }

  Summary run() {
    markActivations();
    markForward();
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
    for (Op *op : llvm::reverse(ops))
      if (op->is(OpKind::reshape) && op->result()->unused())
        op->erase();  // its users read a view of the low copy
    if (library)
      for (Op &op : f.body)
        lowerBias(op);
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
    Value *alias;  // the operand: the value or a view of it
  };

  Function &f;
  const DType low;
  const bool keepsStream;  // the residual stream stays f32
  const bool library;
  const llvm::StringSet<> &caches;
  const llvm::DenseMap<const Op *, int> groups;
  llvm::DenseSet<int> matmulGroups;
  llvm::DenseSet<const Value *> activations;
  llvm::DenseSet<const Op *> forward;                   // ops that the logits depend on; without a loss all ops
  llvm::DenseSet<const Value *> becameLow;              // results of low ops that were f32
  llvm::DenseMap<const Value *, Value *> narrow, wide;  // memo of narrowed() and widened()
  Summary summary;

  // ---- step 2 ----

  void markActivations() {
    for (const auto &a : f.body.args)
      if (a->type.rank() > 0)
        activations.insert(a.get());
    for (const Op &op : f.body) {
      bool depends = llvm::any_of(op.operands(), [&](const Value *v) { return activations.contains(v); });
      const bool tabulates = op.numResults() > 0 && isFloat(op.result(0)->type.dtype) &&
                             llvm::all_of(op.operands(), [](const Value *v) { return isInt(v->type.dtype); });
      if (!depends || sumsTokens(op) || tabulates)
        continue;
      for (unsigned i = 0; i < op.numResults(); ++i) {
        bool statistic = op.def().fusion == FusionKind::row && op.result(i)->type.rank() < op.operand(0)->type.rank();
        if (!statistic)
          activations.insert(op.result(i));
      }
    }
  }

  void markForward() {
    std::vector<const Op *> left;
    auto add = [&](const Op *op) {
      if (op && forward.insert(op).second)
        left.push_back(op);
    };
    for (const Op &op : f.body)
      if (op.is(OpKind::cross_entropy))
        add(op.operand(0)->def);
    if (left.empty())
      for (const Op &op : f.body)
        add(&op);
    while (!left.empty()) {
      const Op *op = left.back();
      left.pop_back();
      for (const Value *v : op->operands())
        add(v->def);
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
    return keepsStream && u.user->is(OpKind::add) && u.user->operand(0)->type.sameShape(u.user->operand(1)->type) &&
           activations.contains(u.user->operand(0)) && activations.contains(u.user->operand(1));
  }

  /// Whether the op adds a matmul of its group to an f32 residual stream and a cuBLASLt call will compute the group.
  bool endsInStream(const Op &op) const {
    return keepsStream && library && op.is(OpKind::add) && op.operand(0)->type.sameShape(op.operand(1)->type) &&
           matmulGroups.contains(groupOf(&op));
  }

  // ---- step 3 ----

  void lowerUses(Value *v) {
    if (!activations.contains(v) || (v->type.dtype != DType::f32 && v->type.dtype != low))
      return;
    if (v->def && v->def->is(OpKind::cast) && v->def->operand(0)->type.dtype == low)
      return;                                     // stored in low precision already
    const bool storedLow = v->type.dtype == low;  // the result of a low op
    if (storedLow && !becameLow.contains(v))
      return;  // as it was given: all uses take it so
    std::vector<Use> uses, lowUses, others, norms;
    collectUses(v, uses);
    bool wideInMemory = !v->def, forwardReads = false;
    llvm::DenseSet<int> readers;
    for (const Use &u : uses) {
      if (readsLow(*u.user, u.operand)) {
        lowUses.push_back(u);
      } else if (storedLow) {
        const bool isKept = u.user->is(OpKind::write) && caches.contains(u.user->state);
        if (!u.user->is(OpKind::cast) && !isKept)
          others.push_back(u);
      } else if (!u.user->def().lower) {
        wideInMemory = true;
      } else if (v->def && u.alias == v && groupOf(u.user) == groupOf(v->def)) {
        if (u.user->isOneOf(OpKind::layernorm, OpKind::rmsnorm) && u.operand == 0 && forward.contains(u.user))
          norms.push_back(u);
      } else if (isStream(u)) {
        wideInMemory = true;
      } else {
        others.push_back(u);
        readers.insert(groupOf(u.user));
        forwardReads |= forward.contains(u.user);
      }
    }
    const bool pays =
        v->def && !endsInStream(*v->def) && (wideInMemory && !forwardReads ? readers.size() >= 2 : !readers.empty());
    for (const Use &u : norms)
      u.user->setOperand(u.operand, widened(narrowed(u.alias)));
    const bool copied = !lowUses.empty() || pays || (!norms.empty() && !others.empty());
    if (!storedLow && !copied)
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

  /// The low copy of a value. For a view it is a view of the low copy.
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

  /// Lowers the remaining operands of an op of class low and infers its result types.
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
      if (types[i].dtype == low && op.result(i)->type.dtype != low)
        becameLow.insert(op.result(i));
      op.result(i)->type = types[i];
      for (Op *user : op.result(i)->users())
        retypeViews(*user, types[i].dtype);
    }
  }

  /// Whether memory will hold `v` in low precision only: its users are casts to `low`, or a gelu_tanh or an addition in
  /// its group whose result fulfils the same.
  bool storedLow(const Value *v) const {
    return llvm::all_of(v->users(), [&](const Op *user) {
      return (user->is(OpKind::cast) && user->result()->type.dtype == low) ||
             (groupOf(user) >= 0 && groupOf(user) == groupOf(v->def) && user->isOneOf(OpKind::gelu_tanh, OpKind::add) &&
              storedLow(user->result()));
    });
  }

  /// Makes the addition of a bias to a matmul read a low copy of the bias, widened, if the sum is stored low only.
  void lowerBias(Op &op) {
    if (addsBias(op) && matmulGroups.contains(groupOf(&op)) && storedLow(op.result()))
      readBiasNarrow(op, low);
  }

  /// Step 7. Rounding before the all_gather gives the same bits for half the bytes.
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

// ---- step 6: caches -------------------------------------------------------------------------------------------------

/// Makes caches that only attention reads and writes, and what functions read of them, low. Returns their names.
llvm::StringSet<> lowerCaches(Module &m, DType low) {
  llvm::StringSet<> kept;  // states that stay
  auto keep = [&](llvm::StringRef state) { return kept.insert(state).second; };
  std::vector<const Op *> attentions;
  for (const auto &s : m.states)
    if (kindOf(*s) != StateKind::cache || s->type.dtype != DType::f32)
      keep(s->name);
  auto isAttention = [](const Op *op) { return op && op->is(OpKind::attention_cached); };
  for (const auto &f : m.functions)
    for (const Op &op : f->body) {
      if (isAttention(&op))
        attentions.push_back(&op);
      if ((op.is(OpKind::read) && !llvm::all_of(op.result()->users(), isAttention)) ||
          (op.is(OpKind::write) && !isAttention(op.operand(0)->def)))
        keep(op.state);
    }
  // One that stays keeps those that an op takes or writes beside it, as they have one type.
  for (bool changed = true; changed;) {
    changed = false;
    for (const Op *op : attentions) {
      bool stays = false;
      std::vector<llvm::StringRef> states;
      for (unsigned i : {1, 2}) {
        const Op *read = op->operand(i)->def;
        if (read && read->is(OpKind::read))
          states.push_back(read->state);
        else
          stays = true;
        for (const Op *user : op->result(i)->users())
          if (user->is(OpKind::write))
            states.push_back(user->state);
      }
      if (stays || llvm::any_of(states, [&](llvm::StringRef s) { return kept.contains(s); }))
        for (llvm::StringRef s : states)
          changed |= keep(s);
    }
  }
  llvm::StringSet<> lowered;
  for (auto &s : m.states)
    if (!kept.contains(s->name)) {
      s->type.dtype = low;
      lowered.insert(s->name);
    }
  for (auto &f : m.functions)
    for (Op &op : f->body)
      if (op.is(OpKind::read) && lowered.contains(op.state))
        op.result()->type.dtype = low;
  return lowered;
}

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

/// Replaces casts of parameters by reads of their copies.
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

/// Makes every write of a parameter write its copy too, if it has one that the function does not write yet.
void writeCopies(Module &m, Function &f, DType low, Summary &summary) {
  llvm::StringSet<> written;
  for (const Op &op : f.body)
    if (op.is(OpKind::write))
      written.insert(op.state);
  for (Op *op = f.body.front(), *next; op; op = next) {
    next = op->next();
    State *copy = op->is(OpKind::write) ? m.state("low." + op->state) : nullptr;
    if (!copy || kindOf(*copy) != StateKind::low || written.contains(copy->name))
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

// ---- tf32 -----------------------------------------------------------------------------------------------------------

/// Sets the attribute `tf32`. Returns the number of ops that got it.
int64_t allowTF32(Function &f) {
  int64_t n = 0;
  for (Op &op : f.body)
    if (op.def().hasAttr("tf32") && op.def().autocast == AutocastClass::low &&
        llvm::all_of(op.def().autocast.lowOperands,
                     [&](unsigned i) { return i >= op.numOperands() || op.operand(i)->type.dtype == DType::f32; })) {
      op.attrs.set("tf32", true);
      ++n;
    }
  return n;
}

}  // namespace

void readBiasNarrow(Op &addition, DType low) {
  for (unsigned i = 0; i < 2; ++i) {
    Value *bias = addition.operand(i);
    if (bias->type.rank() != 1 || bias->type.dtype != DType::f32 || !bias->def || !bias->def->is(OpKind::read))
      continue;
    Builder b(*addition.parent(), &addition);
    b.loc = addition.loc;
    b.layer = addition.layer;
    Value *narrow = b.value(OpKind::cast, {bias}, attrs({{"dtype", nameOf(low).str()}}));
    addition.setOperand(i, b.value(OpKind::cast, {narrow}, attrs({{"dtype", std::string("f32")}})));
  }
}

void copyCastParameters(Module &m, DType low) {
  Summary ignored;
  for (auto &f : m.functions)
    readCopies(m, *f, low, ignored);
  for (auto &f : m.functions)
    writeCopies(m, *f, low, ignored);
}

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
  const Residual residual = fact<&PrecisionFacts::residual>(m);
  const bool library = options.target && options.target->callsLibrary();
  Summary step;
  const llvm::StringSet<> caches = lowerCaches(m, low);
  for (auto &f : m.functions) {
    Summary s = Lowering(*f, low, residual, library, caches).run();
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
