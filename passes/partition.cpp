// Data parallelism: what ranks along the axis "data" of the mesh (ir/mesh.h) do together in a step. Each has its part
// of the global batch; their gradients are summed, and with zero_stage > 0 each updates its piece of the parameters
// (ZeRO, Rajbhandari et al. 2020).
//
// Module attributes: mesh_data; zero_stage 0 to 3; reduce_order "tree" or "fast" (ir/ops/collective.cpp); shards, the
// logical shards of a rank (autodiff). A module of one rank with one shard is left alone.
//
//   1. A parameter of two dimensions or more whose rows divide by the ranks is divided from stage 1 on: one piece per
//      rank, of equal rows. The others, a thousandth of a GPT, stay whole and are updated by every rank alike.
//   2. Gradients and loss are summed where the step's last function has them: by reduce_scatter into pieces, or by
//      all_reduce.
//   3. The squares for the global norm are summed row by row and rows in order, so that it has the same bits on any
//      number of ranks: those of divided parameters by whoever has the row, and gathered.
//   4. Updates (adamw, sgd, adafactor) read and write pieces: of a divided parameter the state itself and its moments
//      are pieces, as are gradients, and so is what is computed from them row by row. Sums over rows: one value per row
//      is gathered and summed in order. The squares of columns are summed in as many equal parts as logical shards
//      divide the rows, a rank's parts by that rank, and the parts' sums added in a binary tree.
//   5. Whoever reads a divided parameter gets the whole: up to stage 2 from a state of kind "whole" (its low copy,
//      where there is one), into which the step's last function gathers the new pieces; with stage 3 by all_gather just
//      before its use, again where the next use is far away, so that no rank ever holds all of them.
//
// A gradient is scattered as soon as the step's last function has it, so that stage 1 holds no more of them than stage
// 2. Where gradients accumulate in the order of a tree, each rank's own are whole until the step's end in every stage:
// the sum over a shard must be complete before it meets another's. With reduce_order "fast" nothing asks for that, and
// from stage 2 on they are summed between ranks in every micro-step and accumulate as pieces, which is what those
// stages are known for: a P-th of the memory, for as many times the messages as there are micro-batches.
//
// On the joint graph, after precision, whose low copies are what is gathered; before fuse, so that groups have the
// shapes that ranks really have. What shard-tensor has cut it takes as it finds it: each rank along "tensor" shares its
// part with the ranks along "data". The attribute `partitioned` says that it has been done.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

#include <numeric>

namespace gptc {

namespace {

/// Ops between two uses of a gathered parameter from which on it is gathered twice (step 5).
constexpr int farAway = 24;

class Partition {
public:
  explicit Partition(Module &m)
      : m(m), ranks(Mesh::of(m).data), stage(fact<&ParallelFacts::zeroStage>(m)),
        order(fact<&ParallelFacts::reduceOrder>(m)) {}

  void run() {
    Function *last = m.function("update") ? m.function("update") : m.function("train_step");
    if (!last)
      return;
    Op *ret = last->body.back();
    findUpdates(*last);
    if (ranks > 1) {
      Builder b(last->body, firstOf(ret->operand(0)->users(), ret->operand(0)));
      reduceLoss(b, ret);
    }
    for (Update &u : updates) {
      if (u.divided && stage >= 2 && order == ReduceOrder::fast)
        accumulatePieces(*last, u);
      sumGradient(*last, u);
    }
    sumColumns(*last);
    if (llvm::any_of(updates, [](const Update &u) { return u.divided; }))
      dividePieces(*last);
    for (Update &u : updates)
      if (u.divided)
        giveWhole(*last, u);
  }

private:
  Module &m;
  const int64_t ranks, stage;
  const ReduceOrder order;

  struct Update {
    Op *step;  // updatesParameter
    State *param;
    bool divided = false;
  };
  std::vector<Update> updates;
  llvm::DenseMap<const Value *, Type> wholes;  // of each value that is a piece: what all of them are together

  AttrMap how(bool sums) const {
    AttrMap a = attrs({{"axis", std::string("data")}, {"ranks", ranks}});
    if (sums)
      a.set("order", std::string(nameOf(order)));
    return a;
  }

  /// Makes a state hold this rank's piece.
  void divide(State &s) const { Cut{0, s.type.dims[0], {s.type.padded(0)}}.apply(s, "data", ranks); }

  /// Step 1.
  void findUpdates(Function &f) {
    for (Op &op : f.body) {
      if (!updatesParameter(op))
        continue;
      GPTC_CHECK(op.operand(0)->def && op.operand(0)->def->is(OpKind::read), "{} of something else than a state",
                 op.name());
      Update u{&op, m.state(op.operand(0)->def->state)};
      const Type &t = u.param->type;
      u.divided = ranks > 1 && stage > 0 && t.rank() >= 2 && t.padded(0) % ranks == 0;
      updates.push_back(u);
    }
    // Stochastic rounding draws by the index in the whole, along this axis.
    llvm::DenseMap<int64_t, Value *> offsets;
    for (const Update &u : updates)
      if (u.divided && takesSeed(*u.step))
        countFromPiece(f, *u.step, offsets);
  }

  /// An update's index0 grows by where this rank's piece begins. `offsets`: of pieces by their elements.
  void countFromPiece(Function &f, Op &step, llvm::DenseMap<int64_t, Value *> &offsets) const {
    const Type &t = step.operand(0)->type;
    const int64_t elements = t.padded(0) / ranks * t.slice(1, t.rank()).elements();
    Value *&offset = offsets[elements];
    if (!offset) {
      Builder b(f.body, f.body.front());
      offset = b.value(OpKind::mul, {b.value(OpKind::axis_index, {}, how(false)),
                                     b.constant(double(elements), Type::scalar(DType::i64))});
    }
    const unsigned index0 = *step.def().operandIndex("index0");
    if (step.numOperands() > index0)
      step.setOperand(index0, Builder(f.body, &step).value(OpKind::add, {step.operand(index0), offset}));
    else
      step.addOperand(offset);
  }

  /// The first of these users of `v`: not before it can what depends on all ranks be needed.
  static Op *firstOf(llvm::ArrayRef<Op *> users, const Value *v) {
    for (Op *op = v->def ? v->def->next() : v->owner->front(); op; op = op->next())
      if (llvm::is_contained(users, op))
        return op;
    GPTC_UNREACHABLE("a value without uses");
  }

  static void replaceOperand(Op &user, Value *v, Value *by) {
    for (unsigned i = 0; i < user.numOperands(); ++i)
      if (user.operand(i) == v)
        user.setOperand(i, by);
  }

  void reduceLoss(Builder &b, Op *ret) {
    Value *loss = ret->operand(0);
    b.loc = "loss";
    Value *sum = b.value(OpKind::all_reduce, {loss}, how(true));
    for (Op *user : llvm::SmallVector<Op *, 4>(loss->users()))
      if (user != sum->def)
        replaceOperand(*user, loss, sum);
  }

  /// Whether the op is the optimizer's, rather than one of the backward graph, which the same gradient may feed.
  static bool isOptimizers(const Op &op) {
    const bool squares = op.is(OpKind::mul) && op.operand(0) == op.operand(1) &&
                         llvm::all_of(op.result()->users(), [](Op *u) { return u->is(OpKind::adafactor_moment); });
    return squares || belongsToUpdate(op) ||
           op.isOneOf(OpKind::sum_squares, OpKind::column_squares, OpKind::adafactor_squares);
  }

  struct Accumulator {
    State *state;
    Op *read, *reset;          // in the step's last function
    Op *sum, *before, *after;  // of a micro-batch, continuing what is read before
  };

  /// Step 2, a micro-batch at a time: where the gradient is an accumulator, or the sum of some.
  void accumulatePieces(Function &last, Update &u) {
    Function *micro = m.function("accumulate");
    Value *g = u.step->operand(1);
    if (!micro || !llvm::all_of(g->users(), [](const Op *user) { return isOptimizers(*user); }))
      return;
    std::vector<Accumulator> accumulators;
    std::vector<Value *> sums = {g};  // from the gradient back to what is read
    for (size_t i = 0; i < sums.size(); ++i) {
      Op *op = sums[i]->def;
      if (op && op->is(OpKind::add) && (i == 0 || sums[i]->hasOneUse())) {
        sums.insert(sums.end(), {op->operand(0), op->operand(1)});
      } else if (auto a = op && op->is(OpKind::read) && (i == 0 || sums[i]->hasOneUse())
                              ? accumulatorOf(*op, last, *micro)
                              : std::nullopt) {
        accumulators.push_back(*a);
      } else {
        return;
      }
      if (!sums[i]->type.sameShape(g->type))
        return;
    }
    const Type whole = g->type;
    for (const Accumulator &a : accumulators) {
      divide(*a.state);
      Builder zero(last.body, a.reset);
      Op *old = a.reset->operand(0)->def;
      a.reset->setOperand(0, zero.constant(0, a.state->type));
      if (old->result()->unused())
        old->erase();
      a.before->result()->type = a.state->type;
      // The sum of this micro-batch alone, scattered, then added.
      Builder b(micro->body, a.after);
      b.loc = a.sum->loc;
      b.layer = a.sum->layer;
      llvm::ArrayRef<Value *> inputs = a.sum->operands().drop_back();
      Op *alone = b.op(a.sum->kind, {inputs.begin(), inputs.end()}, {whole}, a.sum->attrs);
      Value *piece = b.value(OpKind::reduce_scatter, {alone->result()}, how(true));
      a.after->setOperand(0, b.value(OpKind::add, {a.before->result(), piece}));
      a.sum->erase();
    }
    for (Value *v : sums) {
      v->type = accumulators[0].state->type;
      wholes[v] = whole;
    }
  }

  /// The accumulator that the last function reads here, if it is one that takes a sum with an `init` in each
  /// micro-batch and starts again from zero.
  std::optional<Accumulator> accumulatorOf(Op &read, Function &last, Function &micro) const {
    Accumulator a{m.state(read.state), &read, nullptr, nullptr, nullptr, nullptr};
    if (!a.state || kindOf(*a.state) != StateKind::grad || !a.state->type.sameShape(read.result()->type))
      return std::nullopt;
    int uses = 0;
    for (const auto &f : m.functions)
      for (Op &op : f->body) {
        if (op.state != a.state->name)
          continue;
        ++uses;
        if (f.get() == &last && op.is(OpKind::write))
          a.reset = &op;
        else if (f.get() == &micro)
          (op.is(OpKind::write) ? a.after : a.before) = &op;
      }
    if (uses != 4 || !a.reset || !a.before || !a.after)
      return std::nullopt;
    a.sum = a.after->operand(0)->def;
    const Op *zero = a.reset->operand(0)->def;
    if (!a.sum || a.sum->numResults() != 1 || a.sum->numOperands() < 2 || !a.sum->result()->hasOneUse() ||
        a.sum->operands().back() != a.before->result() || !a.before->result()->hasOneUse() || !zero ||
        !zero->is(OpKind::constant))
      return std::nullopt;
    return a;
  }

  /// Steps 2 and 3.
  void sumGradient(Function &f, Update &u) {
    Value *g = u.step->operand(1);
    if (ranks > 1 && !wholes.contains(g) && !isSummed(*g)) {
      llvm::SmallVector<Op *, 4> users;
      llvm::copy_if(g->users(), std::back_inserter(users), [](const Op *user) { return isOptimizers(*user); });
      Builder b(f.body, firstOf(users, g));
      b.loc = u.param->name;
      const Type whole = g->type;
      Op *sum = b.op(u.divided ? OpKind::reduce_scatter : OpKind::all_reduce, {g}, how(true));
      for (Op *user : users)
        replaceOperand(*user, g, sum->result());
      g = sum->result();
      if (u.divided)
        wholes[g] = whole;
    }
    if (u.param->type.rank() < 2)
      return;
    for (Op *squares : llvm::SmallVector<Op *, 4>(g->users())) {
      if (!squares->is(OpKind::sum_squares))
        continue;
      Builder b(f.body, squares);
      b.loc = squares->loc;
      Value *rows = b.value(OpKind::row_squares, {g});
      if (rows->type.rank() > 1)
        rows = b.op(OpKind::reshape, {rows}, {Type(rows->type.dtype, {Dim(rows->type.elements())})})->result();
      if (u.divided) {
        Type all = u.param->type.slice(0, u.param->type.rank() - 1).withDType(rows->type.dtype);
        if (all.rank() > 1)
          all = Type(all.dtype, {Dim(all.elements())});
        rows = b.op(OpKind::all_gather, {rows}, {all}, how(false))->result();
      }
      Value *sum = b.value(OpKind::reduce_sum, {rows}, attrs({{"lead", int64_t(1)}}));
      squares->result()->replaceAllUsesWith(sum);
      squares->erase();
    }
  }

  /// Step 4: squares of columns. The parts do not depend on who has them.
  void sumColumns(Function &f) {
    const int64_t shards = ranks * std::max<int64_t>(1, fact<&ParallelFacts::shards>(m));
    llvm::SmallVector<Op *, 8> sums;
    for (Op &op : f.body)
      if (op.is(OpKind::column_squares))
        sums.push_back(&op);
    for (Op *op : sums) {
      Value *g = op->operand(0);
      const bool piece = wholes.contains(g);
      const int64_t rows = piece ? wholes.find(g)->second.padded(0) : g->type.padded(0);
      const int64_t parts = std::gcd(rows, shards), each = rows / parts;
      if (parts == 1)
        continue;
      Builder b(f.body, op);
      b.loc = op->loc;
      std::vector<Value *> level;
      for (int64_t start = 0; start < g->type.padded(0); start += each)
        level.push_back(
            b.value(OpKind::column_squares, {g}, attrs({{"fold", foldOf(each)}, {"start", start}, {"rows", each}})));
      while (level.size() > 1) {
        std::vector<Value *> next;
        for (size_t i = 0; i < level.size(); i += 2)
          next.push_back(i + 1 < level.size() ? b.value(OpKind::add, {level[i], level[i + 1]}) : level[i]);
        level = std::move(next);
      }
      Value *sum = piece ? b.value(OpKind::all_reduce, {level[0]}, how(true)) : level[0];
      op->result()->replaceAllUsesWith(sum);
      op->erase();
    }
  }

  /// Rows of one partial sum, so that no such sum spans two parts.
  static int64_t foldOf(int64_t rows) {
    for (int64_t fold = 256; fold >= 32; --fold)
      if (rows % fold == 0)
        return fold;
    return rows;
  }

  /// Over the ranks along "data", already.
  static bool isSummed(const Value &g) {
    return g.def && g.def->is(OpKind::all_reduce) && g.def->attrs.getString("axis") == "data";
  }

  /// What an update computes with: it may read pieces of the states of divided parameters.
  static bool belongsToUpdate(const Op &op) {
    return updatesParameter(op) || op.isOneOf(OpKind::row_squares, OpKind::adafactor_moment);
  }

  /// Step 4: all that follows row by row from pieces is pieces.
  void dividePieces(Function &f) {
    llvm::StringMap<const Update *> divided;
    for (const Update &u : updates)
      if (u.divided)
        divided[u.param->name] = &u;
    auto readOf = [](const Value *v) { return v->def && v->def->is(OpKind::read) ? v->def : nullptr; };
    for (Op *op = f.body.front(), *next; op; op = next) {
      next = op->next();
      // Of pieces, ranks along "tensor" add pieces.
      const bool ours = op->def().fusion == FusionKind::collective && op->attrs.getString("axis") == "data";
      if (ours || op->is(OpKind::write))
        continue;
      const bool readsPiece = llvm::any_of(op->operands(), [&](const Value *v) {
        const Op *read = readOf(v);
        return wholes.contains(v) || (read && belongsToUpdate(*op) && divided.contains(read->state));
      });
      if (!readsPiece)
        continue;
      Builder b(f.body, op);
      b.loc = op->loc;
      for (unsigned i = 0; i < op->numOperands(); ++i)
        if (Op *read = readOf(op->operand(i)))
          if (State *s = m.state(read->state); divided.contains(s->name) || kindOf(*s) == StateKind::moment)
            readPiece(b, *op, i, *s);
      if (op->is(OpKind::reduce_sum)) {
        Value *piece = op->operand(0);
        op->setOperand(0, b.op(OpKind::all_gather, {piece}, {wholes.find(piece)->second}, how(false))->result());
        continue;
      }
      std::vector<Type> types;
      std::string error;
      GPTC_CHECK(op->def().infer(*op, types, error), "on pieces, {}: {}", print(*op), error);
      for (unsigned i = 0; i < op->numResults(); ++i) {
        if (!types[i].sameShape(op->result(i)->type))
          wholes[op->result(i)] = op->result(i)->type;
        op->result(i)->type = types[i];
      }
    }
  }

  /// Operand i, the whole of a state, becomes this rank's piece of it.
  void readPiece(Builder &b, Op &op, unsigned i, State &s) {
    Op *whole = op.operand(i)->def;
    const Type type = whole->result()->type;
    if (!Cut::of(s, "data"))
      divide(s);
    op.setOperand(i, b.read(s));
    wholes[op.operand(i)] = type;
    if (whole->result()->unused())
      whole->erase();
  }

  /// Step 5.
  void giveWhole(Function &last, Update &u) {
    State *low = nullptr;
    for (const auto &s : m.states)
      if (kindOf(*s) == StateKind::low && fact<&StateFacts::of>(*s) == u.param->name)
        low = s.get();
    const Type type = wholeAlongData(*u.param);
    if (low) {
      if (stage < 3) {
        gatherInto(last, *low, low->type);
      } else {
        const Type whole = low->type;
        divide(*low);
        gatherAtUses(*low, whole);
      }
    }
    if (stage == 3) {
      gatherAtUses(*u.param, type);
      return;
    }
    bool read = false;
    for (const auto &f : m.functions)
      for (Op *op = f->body.front(), *next; op; op = next) {
        next = op->next();
        if (!readsOther(*op, *u.param))
          continue;
        if (op->result()->unused())
          op->erase();  // precision has left it behind: the low copy is read instead
        else
          read = true;
      }
    if (!read)
      return;
    State *whole = m.addState("whole." + u.param->name, type);
    setFact<&StateFacts::kind>(*whole, StateKind::whole);
    setFact<&StateFacts::of>(*whole, u.param->name);
    if (hasFact<&StateFacts::cutTensor>(*u.param))
      setFact<&StateFacts::cutTensor>(*whole, fact<&StateFacts::cutTensor>(*u.param));
    for (const auto &f : m.functions)
      for (Op &op : f->body)
        if (readsOther(op, *u.param)) {
          op.state = whole->name;
          op.result()->type = type;
        }
    Builder b(last.body, last.body.back());
    b.loc = whole->name;
    b.write(*whole, b.op(OpKind::all_gather, {u.step->result(0)}, {type}, how(false))->result());
  }

  /// Whether this reads the whole of a parameter, not the piece that is updated.
  static bool readsOther(const Op &op, const State &s) {
    return op.is(OpKind::read) && op.state == s.name &&
           !llvm::any_of(op.result()->users(), [](const Op *user) { return belongsToUpdate(*user); });
  }

  /// What the function writes to this state are pieces: the state gets the whole.
  void gatherInto(Function &f, State &s, const Type &whole) {
    for (Op &op : f.body)
      if (op.is(OpKind::write) && op.state == s.name && !op.operand(0)->type.sameShape(whole)) {
        Builder b(f.body, &op);
        b.loc = s.name;
        op.setOperand(0, b.op(OpKind::all_gather, {op.operand(0)}, {whole}, how(false))->result());
      }
  }

  /// Every other user of the state's content gets a gathered whole.
  void gatherAtUses(State &s, const Type &whole) {
    for (const auto &f : m.functions) {
      struct Use {
        Op *user;
        int position;  // behind the read
      };
      std::vector<std::pair<Op *, std::vector<Use>>> reads;
      for (Op &op : f->body) {
        if (!readsOther(op, s))
          continue;
        std::vector<Use> uses;
        const auto users = op.result()->users();
        // A walk rather than a table of all positions: there are as many states as layers have.
        int n = 0;
        for (Op *at = &op; at; at = at->next(), ++n)
          if (llvm::is_contained(users, at))
            uses.push_back({at, n});
        reads.push_back({&op, std::move(uses)});
      }
      for (auto &[read, uses] : reads) {
        read->result()->type = s.type;
        Value *gathered = nullptr;
        int at = 0;
        for (auto [user, position] : uses) {
          if (!gathered || position - at > farAway) {
            Builder b(f->body, user);
            b.loc = s.name;
            b.layer = user->layer;
            gathered = b.op(OpKind::all_gather, {read->result()}, {whole}, how(false))->result();
          }
          at = position;
          for (unsigned i = 0; i < user->numOperands(); ++i)
            if (user->operand(i) == read->result())
              user->setOperand(i, gathered);
        }
      }
    }
  }
};

}  // namespace

bool partition(Module &m, const PassOptions &) {
  if (fact<&PhaseFacts::partitioned>(m) || (Mesh::of(m).data == 1 && fact<&ParallelFacts::shards>(m) == 1))
    return false;
  Partition(m).run();
  setFact<&PhaseFacts::partitioned>(m, true);
  return true;
}

}  // namespace gptc
