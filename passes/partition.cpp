// Data parallelism along the axis "data" of the mesh (ir/mesh.h). Each rank has its part of the global batch. Gradients
// are summed over the ranks, and with zero_stage > 0 each rank updates its piece of the parameters (ZeRO, Rajbhandari
// et al. 2020).
//
// Module attributes: mesh_data; zero_stage 0 to 3; reduce_order "tree" or "fast" (ir/ops/collective.cpp); shards, the
// logical shards of a rank (autodiff). A module of one rank with one shard stays as it is, and so does one whose ranks
// meet in outer steps alone (sync_every, passes/outer_steps.cpp).
//
//   1. From stage 1 on a parameter of two dimensions or more whose rows divide by the ranks is divided: one piece per
//      rank, of equal rows. The others, a thousandth of a GPT, stay whole, and every rank updates them.
//   2. The step's last function sums gradients and loss over the ranks: by reduce_scatter into pieces, or all_reduce.
//   3. The squares for the global norm are summed within each row, and these sums in the order of rows, so that the
//      norm has the same bits on any number of ranks. Of a divided parameter each rank sums the rows of its piece, and
//      the sums are gathered.
//   4. Updates (adamw, sgd, adafactor) of a divided parameter read and write pieces: the state itself, its moments, its
//      gradient, and values computed from them row by row. For a sum over rows one value per row is gathered and summed
//      in order. For the squares of columns the rows are cut into as many equal parts as divide both the rows and the
//      logical shards of all ranks. Each rank sums its own parts, and the sums are added in a binary tree.
//   5. Other users of a divided parameter read the whole. Up to stage 2 a state of kind "whole" (or the low copy, if
//      there is one) holds it, into which the step's last function gathers the new pieces. With stage 3 an all_gather
//      before the use makes it, and another one if the next use is far away, so that no rank holds all wholes at once.
//
// A gradient is scattered as soon as the step's last function has it, so that stage 1 holds no more of them than stage
// 2. If gradients accumulate in tree order, the gradients of a rank are whole until the end of the step in every stage,
// as the sum of a shard must be complete before it is added to another one. With reduce_order "fast" this is not
// needed: from stage 2 on gradients are summed over the ranks in every micro-batch and accumulate as pieces. On P ranks
// this takes 1/P of the memory and sends one message per micro-batch.
//
// Runs on the joint graph, after precision, whose low copies it gathers, and before fuse, so that groups have the
// shapes of one rank. If shard-tensor has run, each rank along "tensor" shares its part with the ranks along "data".
// The attribute `partitioned` marks modules on which the pass has run.
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

/// Step 5: a parameter is gathered again if its next use is more than this number of ops away.
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
  llvm::DenseMap<const Value *, Type> wholes;  // values that are pieces -> the type of the whole

  /// The attributes of a collective; with `order` if it sums.
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
    // Stochastic rounding draws random numbers by the index in the whole, so that pieces round like the whole.
    llvm::DenseMap<int64_t, Value *> offsets;
    for (const Update &u : updates)
      if (u.divided && takesSeed(*u.step))
        countFromPiece(f, *u.step, offsets);
  }

  /// Adds the first index of this rank's piece to the operand index0 of an update. `offsets` caches these values by the
  /// elements of a piece.
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

  /// The first of these users of `v` in the order of the function.
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

  /// Whether the op belongs to the optimizer, not to the backward graph, which may use the same gradient.
  static bool isOptimizers(const Op &op) {
    const bool squares =
        op.is(OpKind::mul) && op.operand(0) == op.operand(1) && llvm::all_of(op.result()->users(), [](Op *u) {
          return u->isOneOf(OpKind::adafactor_moment, OpKind::slice, OpKind::reshape);
        });
    return squares || belongsToUpdate(op) ||
           op.isOneOf(OpKind::sum_squares, OpKind::column_squares, OpKind::adafactor_squares);
  }

  struct Accumulator {
    State *state;
    Op *read, *reset;          // in the step's last function
    Op *sum, *before, *after;  // in @accumulate: the sum, the read that it continues, the write of its result
  };

  /// Step 2 with reduce_order "fast" from stage 2 on: sums the gradient over the ranks in each micro-batch, if it is an
  /// accumulator or a sum of accumulators. Otherwise changes nothing.
  void accumulatePieces(Function &last, Update &u) {
    Function *micro = m.function("accumulate");
    Value *g = u.step->operand(1);
    if (!micro || !llvm::all_of(g->users(), [](const Op *user) { return isOptimizers(*user); }))
      return;
    std::vector<Accumulator> accumulators;
    std::vector<Value *> sums = {g};  // from the gradient back to the reads of accumulators
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
      // Sums this micro-batch alone, scatters the sum and adds the piece.
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

  /// The accumulator that `read`, in the last function, reads. nullopt unless each micro-batch continues it by a sum
  /// with `init`, the last function resets it to zero, and it has no other uses.
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

  /// Step 4: the squares of columns. The parts do not depend on the number of ranks.
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

  /// The attribute `fold` for a part of so many rows. It divides them, so that no partial sum spans two parts.
  static int64_t foldOf(int64_t rows) {
    for (int64_t fold = 256; fold >= 32; --fold)
      if (rows % fold == 0)
        return fold;
    return rows;
  }

  /// Whether the gradient is already summed over the ranks along "data".
  static bool isSummed(const Value &g) {
    return g.def && g.def->is(OpKind::all_reduce) && g.def->attrs.getString("axis") == "data";
  }

  /// Whether the op is part of an update. Such ops read pieces of divided parameters, all others the whole.
  static bool belongsToUpdate(const Op &op) {
    return updatesParameter(op) || op.isOneOf(OpKind::row_squares, OpKind::adafactor_moment);
  }

  /// Step 4: values that are computed row by row from pieces become pieces.
  void dividePieces(Function &f) {
    llvm::StringMap<const Update *> divided;
    for (const Update &u : updates)
      if (u.divided)
        divided[u.param->name] = &u;
    auto readOf = [](const Value *v) { return v->def && v->def->is(OpKind::read) ? v->def : nullptr; };
    for (Op *op = f.body.front(), *next; op; op = next) {
      next = op->next();
      // Skips collectives along "data". Those along "tensor" turn pieces into pieces.
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
      if (op->isOneOf(OpKind::reduce_sum, OpKind::reshape)) {  // of rows, for the norm
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

  /// Makes operand i, a read of a whole state, a read of this rank's piece. Divides the state if it is not yet divided.
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
          op->erase();  // the pass precision left it without users: they read the low copy
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

  /// Whether the op is a read of the state that no op of an update uses.
  static bool readsOther(const Op &op, const State &s) {
    return op.is(OpKind::read) && op.state == s.name &&
           !llvm::any_of(op.result()->users(), [](const Op *user) { return belongsToUpdate(*user); });
  }

  /// Gathers the pieces that the function writes to this state, so that it holds the whole.
  void gatherInto(Function &f, State &s, const Type &whole) {
    for (Op &op : f.body)
      if (op.is(OpKind::write) && op.state == s.name && !op.operand(0)->type.sameShape(whole)) {
        Builder b(f.body, &op);
        b.loc = s.name;
        op.setOperand(0, b.op(OpKind::all_gather, {op.operand(0)}, {whole}, how(false))->result());
      }
  }

  /// Gives each user of the state's content, except updates, a gathered whole.
  void gatherAtUses(State &s, const Type &whole) {
    for (const auto &f : m.functions) {
      struct Use {
        Op *user;
        int position;  // ops after the read
      };
      std::vector<std::pair<Op *, std::vector<Use>>> reads;
      for (Op &op : f->body) {
        if (!readsOther(op, s))
          continue;
        std::vector<Use> uses;
        const auto users = op.result()->users();
        // Walks from each read instead of making a table of all positions, as this runs once per state.
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
  if (fact<&PhaseFacts::partitioned>(m) || fact<&ParallelFacts::syncEvery>(m) > 1 ||
      (Mesh::of(m).data == 1 && fact<&ParallelFacts::shards>(m) == 1))
    return false;
  Partition(m).run();
  setFact<&PhaseFacts::partitioned>(m, true);
  return true;
}

}  // namespace gptc
