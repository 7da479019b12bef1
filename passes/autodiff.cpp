// Reverse-mode differentiation of @forward (Griewank & Walther 2008, chapter 3).
//
// In:   @forward(%x, %y, %seq0) -> the summed loss of all tokens (a float scalar, from reduce_sum).
// Out:  with the module attribute accumulate <= 1:
//         @train_step(%x, %y, %seq0, %n_valid) -> (loss, gradient of each trained parameter in state order)
//       with accumulate > 1:
//         @accumulate(%x, %y, %seq0, %n_valid) -> ()   once per micro-batch
//         @update(%n_valid) -> (loss, gradients)       once per step
//       and, if a rank holds several logical shards of the batch (module attribute shards, a power of two),
//         @fold0, @fold1, .. (%n_valid) -> ()          one of them after each shard but the last
//       The function that returns gradients has the attribute grads, their number. The pass optimizer turns it into an
//       update. loss = sum / n_valid, where n_valid counts the targets of the whole global batch. @forward is removed.
//       A module without @forward stays as it is.
//
// Algorithm
//   1. A value is active when it is a float and depends on a state of kind "param" that is not frozen.
//   2. The gradient of the sum is 1 / n_valid. Ops are visited from last to first; OpDef::grad gives the
//      contributions to the active operands.
//   3. Contributions to one value are added in the order in which they arise, the use nearest to the loss first:
//      ((g_last + g_before) + ...). All reads of a parameter count as one value.
//   4. Sums over tokens among the new ops get `fold`, the rows of one partial sum: the largest common divisor of the
//      module's fold and the rows of one sequence, so that no partial sum spans two sequences.
//   5. If gradients accumulate, there are three classes of values: `fixed` (parameters, constants, n_valid), `token`
//      (they depend on the batch), and `summed` (sums over tokens of `token` values, and values that depend on such
//      sums and `fixed` values alone). The sums that take `token` values form the border. Each of their results gets an
//      accumulator, a state of kind "grad": grad.NAME, or grad.NAME.0, .1, ... if several reach parameter NAME, in the
//      order of step 3. @accumulate continues each sum through the op's own `init` operand. The ops beyond the border
//      (adding the uses, views) run once, in @update, in the same order as in @train_step. So the bits do not depend on
//      how the batch is cut into micro-batches.
//   6. Accumulators must start from +0. They are created with init = "zeros", and @update writes zeros after reading
//      them. This costs one more store of each gradient per step and saves a special first micro-batch. The bits stay,
//      as a sum without `init` starts from +0 too.
//   7. Shards are added in a binary tree over their numbers, ((s0+s1)+(s2+s3))+.... Ranks add their sums in the same
//      tree, so the bits do not depend on how many ranks share the shards. As in a binary counter, @foldT adds the sums
//      of levels 0 to T-1 to the shard that has just ended and writes the result to level T: a state foldT.NAME of kind
//      "grad" for each result. T is the number of ones at the end of the shard's number in binary. @update adds all
//      levels to the last shard.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/folds.h"
#include "ir/opdef.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"

#include <functional>
#include <numeric>

namespace gptc {

namespace {

[[noreturn]] void fail(const Op &op, const std::string &what, const std::string &help = "") {
  throw UserError(ErrorCode::GirInvalid,
                  fmt::format("'{}'{}: {}", op.name().str(), op.loc.empty() ? "" : " at " + op.loc, what), help);
}

/// Step 4: the attribute `fold` of an op that sums the first `lead` dimensions of `t`.
int64_t foldFor(const Type &t, unsigned lead, int64_t fold) {
  if (lead == 1)  // [tokens, C] counts tokens; [B, T, C] counts sequences, each a block of its own
    return t.rank() <= 2 ? std::gcd(fold, t.dim(0)) : 1;
  int64_t rows = 1;
  for (unsigned i = 1; i < lead; ++i)
    rows *= t.dim(i);
  return std::gcd(fold, rows);
}

/// Whether an op sums over tokens. Sets its `fold` if it has none yet and the module's `fold` is not 0.
bool isTokenSum(Op &op, int64_t fold) {
  const unsigned lead = summedTokenDims(op);
  if (lead && fold && op.def().hasAttr("fold") && op.attrs.getInt("fold") == 0)
    op.attrs.set("fold", foldFor(op.operand(0)->type, lead, fold));
  return lead > 0;
}

class Differentiator {
public:
  Differentiator(Module &m, Function &f, int64_t fold) : m(m), f(f), fold(fold) {}

  /// Appends the backward graph and returns (loss, gradients).
  void run() {
    Op *ret = f.body.back();
    Value *sum = ret->operand(0);
    Value *nValid = f.body.addArg(sum->type, "n_valid");
    markActive();
    if (!active.contains(sum))
      throw UserError(ErrorCode::GirInvalid, "the result of @forward depends on no parameter",
                      "parameters are states with kind=\"param\" that the function reads");
    Op *def = sum->def;
    while (def && def->is(OpKind::all_reduce))  // of the sums over each rank's tokens
      def = def->operand(0)->def;
    if (def && isTokenSum(*def, 0))
      tokenSums.insert(def);

    Builder b(f.body, ret);
    Value *loss = b.value(OpKind::div, {sum, nValid});
    // A state @loss_scale multiplies all gradients, so that small ones do not underflow in fp16.
    const State *scale = m.state("loss_scale");
    contributions[sum] = b.value(OpKind::div, {scale ? b.read(*scale) : b.constant(1, sum->type), nValid});
    for (Op *op = loss->def->prev(); op; op = op->prev())
      visit(*op, ret);

    std::vector<Value *> results = {loss};
    for (const auto &s : m.states)
      if (isTrained(*s)) {
        Value *g = gradients.lookup(s->name);
        results.push_back(g ? g : b.constant(0, s->type));
      }
    ret->erase();
    Builder(f.body).ret(results);
    setFact<&FunctionFacts::grads>(f, int64_t(results.size() - 1));
  }

  llvm::DenseSet<Op *> tokenSums;

private:
  Module &m;
  Function &f;
  int64_t fold;
  llvm::DenseSet<const Value *> active;
  llvm::DenseMap<const Value *, Value *> contributions;
  llvm::StringMap<Value *> gradients;  // by name of the state

  void markActive() {
    for (Op &op : f.body) {
      bool depends = false;
      if (op.is(OpKind::read)) {
        const State *s = m.state(op.state);
        depends = s && isTrained(*s);
      }
      for (Value *v : op.operands())
        depends |= active.contains(v);
      for (unsigned i = 0; depends && i < op.numResults(); ++i)
        if (isFloat(op.result(i)->type.dtype))
          active.insert(op.result(i));
      for (unsigned i = 0; depends && i < op.numResults(); ++i)
        if (op.result(i)->type.dtype == DType::f8e4m3)
          fail(op, "yields f8e4m3 before gradients are made", "products take that type after autodiff");
      if (op.is(OpKind::write))
        fail(op, "@forward may not write state", "it is differentiated and run once per micro-batch");
    }
  }

  Value *plus(Builder &b, Value *sum, Value *g) { return sum ? b.value(OpKind::add, {sum, g}) : g; }

  void visit(Op &op, Op *end) {
    if (op.is(OpKind::ret))
      return;
    std::vector<Value *> dresults;
    bool any = false;
    for (unsigned i = 0; i < op.numResults(); ++i) {
      dresults.push_back(contributions.lookup(op.result(i)));
      any |= dresults.back() != nullptr;
    }
    if (!any)
      return;
    Builder b(f.body, end);
    b.loc = op.loc;
    b.layer = op.layer;
    if (op.is(OpKind::read)) {
      Value *&g = gradients[op.state];
      g = plus(b, g, dresults[0]);
      return;
    }
    const OpDef &def = op.def();
    if (!def.grad)
      fail(op, fmt::format("has no gradient: {}", def.grad.why()));
    Op *last = end->prev();
    GradCtx ctx{b, op, dresults};
    std::vector<Value *> grads = def.grad(ctx);
    GPTC_CHECK(grads.size() <= op.numOperands(), "gradient of '{}' has {} entries", def.name, grads.size());
    for (Op *n = last->next(); n != end; n = n->next())
      if (isTokenSum(*n, fold))
        tokenSums.insert(n);
    for (unsigned i = 0; i < grads.size(); ++i) {
      Value *to = op.operand(i), *g = grads[i];
      if (!g || !active.contains(to))
        continue;
      GPTC_CHECK(g->type.sameShape(to->type), "gradient {} of '{}' is {}, its operand {}", i, def.name, g->type.str(),
                 to->type.str());
      Value *&sum = contributions[to];
      sum = plus(b, sum, g);
    }
  }
};

/// Steps 5 to 7: cuts a function that returns (loss, gradients) at its sums over tokens.
class Splitter {
public:
  Splitter(Module &m, Function &f, const llvm::DenseSet<Op *> &tokenSums) : m(m), f(f), tokenSums(tokenSums) {}

  void run() {
    classify();
    Op *ret = f.body.back();
    std::vector<std::string> names = {"nll_acc"};
    for (const auto &s : m.states)
      if (isTrained(*s))
        names.push_back("grad." + s->name);
    for (unsigned i = 0; i < ret->numOperands(); ++i) {
      llvm::SmallVector<Value *, 2> reached;
      reach(ret->operand(i), reached);
      std::sort(reached.begin(), reached.end(), [&](Value *a, Value *b) {
        return std::pair(position[a->def], a->index) < std::pair(position[b->def], b->index);
      });
      for (unsigned k = 0; k < reached.size(); ++k)
        if (!accumulators.count(reached[k])) {
          State *s = addState(m, reached.size() == 1 ? names[i] : fmt::format("{}.{}", names[i], k), reached[k]->type,
                              StateKind::grad);
          accumulators[reached[k]] = s->name;
        }
    }
    const int64_t shards = fact<&ParallelFacts::shards>(m);
    if (shards < 1 || (shards & (shards - 1)))
      throw UserError(ErrorCode::GirInvalid, fmt::format("shards = {} is no power of two", shards));
    int levels = 0;
    while (int64_t(1) << levels < shards)
      ++levels;
    for (int level = 0; level < levels; ++level)
      buildFold(level, names);
    buildUpdate(levels, names);
    turnIntoAccumulate();
  }

private:
  enum Class : char { fixed, token, summed };
  Module &m;
  Function &f;
  const llvm::DenseSet<Op *> &tokenSums;
  llvm::DenseMap<const Value *, Class> classes;
  llvm::DenseMap<const Op *, unsigned> position;
  llvm::DenseSet<Value *> visited;
  llvm::MapVector<Value *, std::string> accumulators;  // result on the border -> name of the state

  Value *nValid() const { return f.body.args.back().get(); }

  void classify() {
    for (const auto &a : f.body.args)
      classes[a.get()] = a.get() == nValid() ? fixed : token;
    unsigned n = 0;
    for (Op &op : f.body) {
      position[&op] = n++;
      bool anyToken = false, anySummed = false;
      for (Value *v : op.operands()) {
        anyToken |= classes[v] == token;
        anySummed |= classes[v] == summed;
      }
      Class c = anyToken ? (tokenSums.contains(&op) ? summed : token) : anySummed ? summed : fixed;
      for (unsigned i = 0; i < op.numResults(); ++i)
        classes[op.result(i)] = c;
    }
  }

  bool onBorder(const Value *v) {
    return v->def && tokenSums.contains(v->def) &&
           llvm::any_of(v->def->operands(), [&](Value *o) { return classes[o] == token; });
  }

  /// Collects the border values on which an output depends, without those that an earlier call has found. Throws
  /// UserError(GirInvalid) if the output depends on a `token` value that no such sum covers.
  void reach(Value *output, llvm::SmallVectorImpl<Value *> &out) {
    llvm::SmallVector<Value *, 16> todo = {output};
    while (!todo.empty()) {
      Value *v = todo.pop_back_val();
      if (!visited.insert(v).second)
        continue;
      if (classes[v] == token) {
        if (v->def)
          fail(*v->def, "reaches a gradient without a sum over tokens",
               "such a graph cannot accumulate gradients: use a global batch of one micro-batch");
        throw UserError(ErrorCode::GirInvalid,
                        fmt::format("argument %{} reaches a gradient without a sum over tokens", v->name));
      }
      if (onBorder(v))
        out.push_back(v);
      else if (v->def)
        todo.append(v->def->operands().begin(), v->def->operands().end());
    }
  }

  /// Fills a function `to`: computes the loss and the gradients of a shard from the accumulators, adds the sums of the
  /// first `levels` levels, writes zeros to the accumulators, and calls `end` with the results.
  void fromAccumulators(Function &to, int levels, const std::vector<std::string> &names,
                        const std::function<void(Builder &, llvm::ArrayRef<Value *>)> &end) {
    llvm::DenseMap<const Value *, Value *> map;
    map[nValid()] = to.body.addArg(nValid()->type, nValid()->name);
    Builder b(to.body);
    for (auto &[v, name] : accumulators)
      map[v] = b.read(*m.state(name));
    for (Op &op : f.body) {
      bool needed = false;
      for (unsigned i = 0; i < op.numResults(); ++i)
        needed |= visited.contains(op.result(i)) && !onBorder(op.result(i));
      if (needed)
        cloneOp(op, to.body, nullptr, map);
    }
    llvm::SmallVector<Value *, 8> results;
    for (unsigned i = 0; i < f.body.back()->numOperands(); ++i) {
      Value *v = map.lookup(f.body.back()->operand(i));
      for (int level = 0; level < levels; ++level)
        v = b.value(OpKind::add, {b.read(*levelState(level, names[i], v->type)), v});
      results.push_back(v);
    }
    for (auto &[v, name] : accumulators)
      b.write(*m.state(name), b.constant(0, v->type));
    end(b, results);
  }

  State *levelState(int level, const std::string &name, const Type &type) {
    std::string full = nameOfFold(level) + "." + name;
    if (State *s = m.state(full))
      return s;
    return addState(m, full, type, StateKind::grad);
  }

  void buildFold(int level, const std::vector<std::string> &names) {
    fromAccumulators(*m.addFunction(nameOfFold(level)), level, names, [&](Builder &b, llvm::ArrayRef<Value *> results) {
      for (size_t i = 0; i < results.size(); ++i)
        b.write(*levelState(level, names[i], results[i]->type), results[i]);
      b.ret({});
    });
  }

  void buildUpdate(int levels, const std::vector<std::string> &names) {
    Function *update = m.addFunction("update");
    setFact<&FunctionFacts::grads>(*update, fact<&FunctionFacts::grads>(f));
    eraseFact<&FunctionFacts::grads>(f);
    fromAccumulators(*update, levels, names, [](Builder &b, llvm::ArrayRef<Value *> results) { b.ret(results); });
  }

  void turnIntoAccumulate() {
    f.body.back()->erase();
    llvm::DenseSet<Op *> done;
    for (auto &[v, name] : accumulators) {
      Op *op = v->def;
      if (done.insert(op).second) {
        if (op->numOperands() > op->def().requiredOperands())
          fail(*op, "already continues a sum");
        Builder b(f.body, op);
        b.loc = op->loc;
        b.layer = op->layer;
        for (unsigned i = 0; i < op->numResults(); ++i) {
          auto it = accumulators.find(op->result(i));
          op->addOperand(it != accumulators.end() ? b.read(*m.state(it->second)) : b.constant(0, op->result(i)->type));
        }
      }
      Builder(f.body, op->next()).write(*m.state(name), v);
    }
    Builder(f.body).ret({});
  }
};

}  // namespace

bool autodiff(Module &m, const PassOptions &) {
  Function *forward = m.function("forward");
  if (!forward)
    return false;
  std::vector<Type> results = forward->results();
  if (results.size() != 1 || !results[0].isScalar() || !isFloat(results[0].dtype))
    throw UserError(ErrorCode::GirInvalid, "@forward must return one float scalar, the summed loss");
  bool accumulate = fact<&BatchFacts::accumulate>(m) > 1;
  for (const char *name : {"train_step", "accumulate", "update"})
    if (m.function(name))
      throw UserError(ErrorCode::GirInvalid, fmt::format("the module has both @forward and @{}", name),
                      "autodiff makes the latter from the former");

  Function *f = m.cloneFunction(*forward, accumulate ? "accumulate" : "train_step");
  m.removeFunction("forward");
  Differentiator d(m, *f, fact<&BatchFacts::fold>(m));
  d.run();
  if (accumulate)
    Splitter(m, *f, d.tokenSums).run();
  return true;
}

}  // namespace gptc
