// The reduction repeats the steps below until a round changes nothing. Every step proposes changed copies of the best
// module so far; one that verifies and still fails becomes the best.
//
//   1. Remove functions, then whole layers.
//   2. Remove results of `return`, and ops: each result of a removed op is replaced by an operand or an earlier value
//      of its type, or by a new argument. Chunks of the list, halved from all ops down to one (ddmin).
//   3. Turn operands of ops into arguments, so that their producers can be removed. Remove optional operands.
//   4. Remove what is unused: ops, arguments, states.
//   5. Change extents to 1, 2, 3, half or one less, everywhere at once: arguments and states get the new types, and the
//      ops' own rules determine the rest. Remove padding.
//   6. Remove attributes for which the op has a default.
#include "tools/check/reduce.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <set>

namespace gptc {

namespace {

std::vector<Op *> opsOf(Module &m) {
  std::vector<Op *> all;
  for (auto &f : m.functions)
    for (Op &op : f->body)
      if (!op.is(OpKind::ret))
        all.push_back(&op);
  return all;
}

Function &functionOf(Module &m, const Op &op) {
  for (auto &f : m.functions)
    if (&f->body == op.parent())
      return *f;
  GPTC_UNREACHABLE("an op outside of all functions");
}

Value *newArgument(Module &m, const Op &op, const Type &t) {
  Function &f = functionOf(m, op);
  return f.body.addArg(t, fmt::format("r{}", f.body.args.size()));
}

/// A replacement for a result of a removed op.
Value *substitute(Module &m, Op &op, const Value &result) {
  for (Value *v : op.operands())
    if (v->type == result.type)
      return v;
  for (const auto &a : functionOf(m, op).body.args)
    if (a->type == result.type)
      return a.get();
  return newArgument(m, op, result.type);
}

void removeOp(Module &m, Op &op) {
  for (unsigned i = 0; i < op.numResults(); ++i)
    if (!op.result(i)->unused())
      op.result(i)->replaceAllUsesWith(substitute(m, op, *op.result(i)));
  op.erase();
}

/// Step 4. Arguments keep their names, which determine their values. Those in `given` stay, and then counters stay too.
void removeUnused(Module &m, bool opsToo, const std::set<std::string> &given) {
  std::set<std::string> used;
  for (auto &f : m.functions) {
    for (Op *op = f->body.back(), *before; op; op = before) {
      before = op->prev();
      bool needed = !opsToo || op->isOneOf(OpKind::ret, OpKind::write);
      for (unsigned i = 0; i < op->numResults(); ++i)
        needed |= !op->result(i)->unused();
      if (!needed)
        op->erase();
      else if (!op->state.empty())
        used.insert(op->state);
    }
    llvm::erase_if(f->body.args, [&](const auto &a) { return a->unused() && !given.count(a->name); });
    for (size_t i = 0; i < f->body.args.size(); ++i)
      f->body.args[i]->index = unsigned(i);
  }
  llvm::erase_if(m.states, [&](const auto &s) {
    return !used.count(s->name) && (given.empty() || kindOf(*s) != StateKind::counter);
  });
}

// ---- step 5 ---------------------------------------------------------------------------------------------------------

/// The new dims of a reshape whose operand changed from `in` to `now`. Runs of dimensions with equal products belong
/// together; in each run either side has one dimension, or both are equal.
bool reshapedDims(const Type &in, const Type &now, const Type &out, const std::function<Dim(Dim)> &map, Type &result) {
  result = Type(now.dtype);
  unsigned i = 0, o = 0;
  while (i < in.rank() || o < out.rank()) {
    unsigned i0 = i, o0 = o;
    int64_t a = 1, b = 1;
    do {
      if ((a <= b && i < in.rank()) || o >= out.rank())
        a *= in.dim(int(i++));
      else
        b *= out.dim(int(o++));
      if (i >= in.rank() && o >= out.rank())
        break;
    } while (a != b || i == i0 || o == o0);
    if (a != b)
      return false;
    int64_t product = 1, made = 1;
    for (unsigned d = i0; d < i; ++d)
      product *= now.dim(int(d));
    if (o - o0 == 1) {
      result.dims.push_back(i - i0 == 1 ? now.dims[i0] : Dim(product));
      continue;
    }
    for (unsigned d = o0; d < o; ++d) {
      result.dims.push_back(map(out.dims[d]));
      made *= result.dims.back().logical;
    }
    if (made != product)
      return false;
  }
  return true;
}

/// Changes every extent `from` to `to`; false if some op does not allow it.
bool changeExtents(Module &m, const std::function<Dim(Dim)> &map, int64_t from, int64_t to) {
  auto mapped = [&](Type t) {
    for (Dim &d : t.dims)
      d = map(d);
    return t;
  };
  for (auto &s : m.states)
    s->type = mapped(s->type);
  for (auto &f : m.functions) {
    llvm::DenseMap<const Value *, Type> old;
    for (auto &a : f->body.args) {
      old[a.get()] = a->type;
      a->type = mapped(a->type);
    }
    for (Op &op : f->body) {
      if (op.is(OpKind::fused))
        return false;
      for (unsigned i = 0; i < op.numResults(); ++i)
        old[op.result(i)] = op.result(i)->type;
      for (const char *name : {"size", "full", "vocab", "padded"})
        if (op.attrs.getInt(name, -1) == from)
          op.attrs.set(name, to);
      if (op.attrs.has("padded"))
        op.attrs.set("padded", std::max(op.attrs.getInt("padded"), op.attrs.getInt("vocab")));
      if (op.attrs.has("size") && op.attrs.has("dim") && op.attrs.has("start") && op.numOperands())
        op.attrs.set("start",
                     std::clamp<int64_t>(op.operand(0)->type.dim(int(op.attrs.getInt("dim"))) - op.attrs.getInt("size"),
                                         0, op.attrs.getInt("start")));
      const OpDef &def = op.def();
      if (def.infer) {
        std::vector<Type> types;
        std::string error;
        if (!checkSignature(op).empty() || !def.infer(op, types, error) || types.size() != op.numResults())
          return false;
        for (unsigned i = 0; i < types.size(); ++i)
          op.result(i)->type = types[i];
      } else if (op.is(OpKind::reshape)) {
        if (!reshapedDims(old[op.operand(0)], op.operand(0)->type, Type(op.result()->type), map, op.result()->type))
          return false;
      } else if (op.is(OpKind::read)) {
        op.result()->type = m.state(op.state)->type;
      } else {
        for (unsigned i = 0; i < op.numResults(); ++i)
          op.result(i)->type = mapped(op.result(i)->type);
      }
    }
  }
  return true;
}

// ---- the search -----------------------------------------------------------------------------------------------------

class Reducer {
public:
  Reducer(const Module &m, const StillFails &stillFails, const std::function<void(const ReduceStep &)> &progress)
      : best(m.clone()), stillFails(stillFails), progress(progress) {}

  std::unique_ptr<Module> run() {
    auto asItIs = [](Module &) { return true; };
    if (!attempt("drop what nobody uses", asItIs)) {
      for (auto &f : best->functions)
        for (auto &a : f->body.args)
          given.insert(a->name);
      deadMatters = !attempt("drop what nobody uses", asItIs);
    }
    for (bool smaller = true; smaller;) {
      smaller = dropFunctions();
      smaller |= dropLayers();
      smaller |= dropResults();
      smaller |= dropOps();
      smaller |= cutOperands();
      smaller |= shrinkExtents();
      smaller |= dropAttributes();
    }
    return std::move(best);
  }

private:
  std::unique_ptr<Module> best;
  const StillFails &stillFails;
  const std::function<void(const ReduceStep &)> &progress;
  std::set<std::string> tried;
  bool deadMatters = false;     // the failure needs unused ops
  std::set<std::string> given;  // arguments that passes look up by name; these passes need counters too

  /// Tries `change` on a copy; `change` returns false if it does not apply.
  bool attempt(const char *what, const std::function<bool(Module &)> &change) {
    auto m = best->clone();
    if (!change(*m))
      return false;
    removeUnused(*m, !deadMatters, given);
    const std::string text = print(*m);
    if (m->functions.empty() || !tried.insert(text).second || !verify(*m).empty() || !stillFails(*m))
      return false;
    best = std::move(m);
    if (progress)
      progress({what, countOps(*best)});
    return true;
  }

  /// ddmin: removes chunks of `size()` numbered things, from all of them down to single ones.
  bool minimise(const char *what, const std::function<size_t()> &size,
                const std::function<bool(Module &, size_t first, size_t count)> &removeChunk) {
    bool any = false;
    for (size_t chunk = std::max<size_t>(1, size()); chunk >= 1; chunk /= 2) {
      // From the end: users are removed before what they use.
      for (size_t end = size(), first; end > 0; end = std::min(first, size())) {
        first = end > chunk ? end - chunk : 0;
        any |= attempt(what, [&](Module &m) { return removeChunk(m, first, end - first); });
      }
      if (chunk == 1)
        break;
    }
    return any;
  }

  bool dropFunctions() {
    return minimise(
        "drop functions", [&] { return best->functions.size(); },
        [](Module &m, size_t first, size_t n) {
          if (n >= m.functions.size())
            return false;
          m.functions.erase(m.functions.begin() + first, m.functions.begin() + first + n);
          return true;
        });
  }

  bool dropLayers() {
    bool any = false;
    std::set<int> layers;
    for (Op *op : opsOf(*best))
      layers.insert(op->layer);
    layers.erase(-1);
    for (int layer : layers)
      any |= attempt("drop a layer", [&](Module &m) {
        std::vector<Op *> all = opsOf(m);
        for (Op *op : llvm::reverse(all))
          if (op->layer == layer)
            removeOp(m, *op);
        return true;
      });
    return any;
  }

  bool dropResults() {
    bool any = false;
    for (size_t f = 0; f < best->functions.size(); ++f)
      any |= minimise(
          "drop results", [&] { return size_t(best->functions[f]->body.back()->numOperands()); },
          [&](Module &m, size_t first, size_t n) {
            Op *ret = m.functions[f]->body.back();
            llvm::SmallVector<Value *, 8> left;
            for (size_t i = 0; i < ret->numOperands(); ++i)
              if (i < first || i >= first + n)
                left.push_back(ret->operand(unsigned(i)));
            ret->dropOperands();
            for (Value *v : left)
              ret->addOperand(v);
            return true;
          });
    return any;
  }

  bool dropOps() {
    return minimise(
        "drop ops", [&] { return opsOf(*best).size(); },
        [](Module &m, size_t first, size_t n) {
          std::vector<Op *> all = opsOf(m);
          for (size_t i = std::min(all.size(), first + n); i-- > first;)
            removeOp(m, *all[i]);
          return true;
        });
  }

  bool cutOperands() {
    bool any = false;
    for (size_t n = 0; n < opsOf(*best).size(); ++n)
      for (unsigned i = 0; i < opsOf(*best)[n]->numOperands(); ++i) {
        const size_t before = opsOf(*best).size();
        any |= attempt("replace an operand", [&](Module &m) {
          Op *op = opsOf(m)[n];
          Op *def = op->operand(i)->def;
          if (!def || def->is(OpKind::constant))
            return false;
          op->setOperand(i, newArgument(m, *op, op->operand(i)->type));
          return true;
        });
        any |= attempt("drop an operand", [&](Module &m) {
          Op *op = opsOf(m)[n];
          const auto &specs = op->def().operands;
          if (i + 1 != op->numOperands() || i >= specs.size() || !specs[i].optional)
            return false;
          llvm::SmallVector<Value *, 8> left(op->operands().drop_back());
          op->dropOperands();
          for (Value *v : left)
            op->addOperand(v);
          return true;
        });
        if (opsOf(*best).size() != before)  // ops before n may have been removed
          return true;
      }
    return any;
  }

  bool shrinkExtents() {
    bool any = attempt("drop padding",
                       [&](Module &m) { return changeExtents(m, [](Dim d) { return Dim(d.logical); }, -2, 0); });
    std::set<int64_t, std::greater<>> extents;
    auto collect = [&](const Type &t) {
      for (const Dim &d : t.dims)
        extents.insert(d.logical);
    };
    for (auto &s : best->states)
      collect(s->type);
    for (auto &f : best->functions)
      for (auto &a : f->body.args)
        collect(a->type);
    for (int64_t from : extents)
      for (int64_t to : {int64_t(1), int64_t(2), int64_t(3), from / 2, from - 1})
        if (to > 0 && to < from &&
            attempt(
                "shrink an extent",
                [&](Module &m) {
                  return changeExtents(
                      m, [&](Dim d) { return d.logical == from ? Dim(to, to + d.padded - d.logical) : d; }, from, to);
                })) {
          any = true;
          break;
        }
    return any;
  }

  bool dropAttributes() {
    bool any = false;
    for (size_t n = 0; n < opsOf(*best).size(); ++n)
      for (const AttrSpec &spec : opsOf(*best)[n]->def().attrs)
        any |= !spec.required && attempt("drop an attribute", [&](Module &m) {
          Op *op = opsOf(m)[n];
          if (!op->attrs.has(spec.name))
            return false;
          op->attrs.erase(spec.name);
          return true;
        });
    return any;
  }
};

}  // namespace

unsigned countOps(const Module &m) {
  unsigned n = 0;
  std::function<void(const Block &)> count = [&](const Block &b) {
    for (const Op &op : b) {
      n += !op.isOneOf(OpKind::ret, OpKind::yield, OpKind::fused);
      if (op.body)
        count(*op.body);
    }
  };
  for (const auto &f : m.functions)
    count(f->body);
  return n;
}

std::unique_ptr<Module> reduceModule(const Module &m, const StillFails &stillFails,
                                     const std::function<void(const ReduceStep &)> &progress) {
  return Reducer(m, stillFails, progress).run();
}

}  // namespace gptc
