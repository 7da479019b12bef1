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
//   4. adamw reads and writes pieces: of a divided parameter the state itself and its moments are pieces, as are
//      gradients.
//   5. Whoever reads a divided parameter gets the whole: up to stage 2 from a state of kind "whole" (its low copy,
//      where there is one), into which the step's last function gathers the new pieces; with stage 3 by all_gather just
//      before its use, again where the next use is far away, so that no rank ever holds all of them.
//
// A gradient is scattered as soon as the step's last function has it, so that stage 1 holds no more of them than stage
// 2. Where gradients accumulate, each rank's own are whole until the step's end in every stage: in the order of a tree
// the sum over a shard must be complete before it meets another's.
//
// On the joint graph, after precision, whose low copies are what is gathered; before fuse, so that groups have the
// shapes that ranks really have. The attribute `partitioned` says that it has been done.
#include "passes/pass.h"

#include "ir/diagnostics.h"
#include "ir/mesh.h"
#include "ir/opdef.h"
#include "passes/decisions.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"

namespace gptc {

namespace {

/// Ops between two uses of a gathered parameter from which on it is gathered twice (step 5).
constexpr int farAway = 24;

class Partition {
public:
  explicit Partition(Module &m)
      : m(m), ranks(Mesh::of(m).data), stage(m.attrs.getInt("zero_stage", 0)),
        order(m.attrs.getString("reduce_order", "tree")) {}

  void run() {
    Function *last = m.function("update") ? m.function("update") : m.function("train_step");
    if (!last)
      return;
    Op *ret = last->body.back();
    findUpdates(*last);
    if (ranks > 1) {
      Builder b(last->body, firstUse(ret->operand(0)));
      reduceLoss(b, ret);
    }
    for (Update &u : updates)
      sumGradient(*last, u);
    for (Update &u : updates)
      if (u.divided)
        dividePiece(*last, u);
    for (Update &u : updates)
      if (u.divided)
        giveWhole(*last, u);
  }

private:
  Module &m;
  const int64_t ranks, stage;
  const std::string order;

  struct Update {
    Op *adam;
    Op *squares;  // sum_squares of its gradient
    State *param;
    bool divided = false;
  };
  std::vector<Update> updates;

  AttrMap how(bool sums) const {
    AttrMap a = attrs({{"axis", std::string("data")}, {"ranks", ranks}});
    if (sums)
      a.set("order", order);
    return a;
  }

  /// Makes a state hold this rank's piece.
  void divide(State &s) const {
    s.attrs.set("whole", std::vector<int64_t>{s.type.dim(0), s.type.padded(0)});
    s.type.dims[0] = Dim(s.type.padded(0) / ranks);
  }

  /// Step 1.
  void findUpdates(Function &f) {
    for (Op &op : f.body) {
      if (!op.is(OpKind::adamw))
        continue;
      Update u{&op, nullptr, nullptr};
      GPTC_CHECK(op.operand(0)->def && op.operand(0)->def->is(OpKind::read), "adamw of something else than a state");
      u.param = m.state(op.operand(0)->def->state);
      for (Op *user : op.operand(1)->users())
        if (user->is(OpKind::sum_squares))
          u.squares = user;
      GPTC_CHECK(u.squares, "the gradient of @{} is in no norm", u.param->name);
      const Type &t = u.param->type;
      // Stochastic rounding draws by the index in the whole.
      if (ranks > 1 && stage > 0 && op.numOperands() > 7)
        throw UserError(ErrorCode::NotBuiltYet, "moments in bf16 are not divided between ranks yet",
                        "precision.optimizer_state = \"fp32\", or parallel.zero_stage = 0");
      u.divided = ranks > 1 && stage > 0 && t.rank() >= 2 && t.padded(0) % ranks == 0;
      updates.push_back(u);
    }
  }

  /// The first op that uses `v`: not before it can what depends on all ranks be needed.
  static Op *firstUse(Value *v) {
    for (Op *op = v->def ? v->def->next() : v->owner->front(); op; op = op->next())
      if (llvm::is_contained(v->users(), op))
        return op;
    GPTC_UNREACHABLE("a value without uses");
  }

  void reduceLoss(Builder &b, Op *ret) {
    Value *loss = ret->operand(0);
    b.loc = "loss";
    Value *sum = b.value(OpKind::all_reduce, {loss}, how(true));
    replaceUses(loss, sum, sum->def);
  }

  /// All users of `v` but `except` use `by`.
  static void replaceUses(Value *v, Value *by, Op *except) {
    llvm::SmallVector<Op *, 4> users(v->users());
    for (Op *user : users)
      for (unsigned i = 0; i < user->numOperands(); ++i)
        if (user != except && user->operand(i) == v)
          user->setOperand(i, by);
  }

  /// Steps 2 and 3.
  void sumGradient(Function &f, Update &u) {
    Value *g = u.adam->operand(1);
    Builder b(f.body, u.squares);
    b.loc = u.param->name;
    if (ranks > 1) {
      Op *sum = b.op(u.divided ? OpKind::reduce_scatter : OpKind::all_reduce, {g}, how(true));
      u.squares->setOperand(0, sum->result());
      u.adam->setOperand(1, sum->result());
      g = sum->result();
    }
    if (u.param->type.rank() < 2)
      return;
    b.loc = u.squares->loc;
    Value *rows = b.value(OpKind::row_sum, {b.value(OpKind::mul, {g, g})});
    if (rows->type.rank() > 1)
      rows = b.op(OpKind::reshape, {rows}, {Type(rows->type.dtype, {Dim(rows->type.elements())})})->result();
    if (u.divided) {
      Type all = u.param->type.slice(0, u.param->type.rank() - 1).withDType(rows->type.dtype);
      if (all.rank() > 1)
        all = Type(all.dtype, {Dim(all.elements())});
      rows = b.op(OpKind::all_gather, {rows}, {all}, how(false))->result();
    }
    Value *sum = b.value(OpKind::reduce_sum, {rows}, attrs({{"lead", int64_t(1)}}));
    u.squares->result()->replaceAllUsesWith(sum);
    u.squares->erase();
    u.squares = nullptr;
  }

  /// Step 4: adamw once more, on pieces.
  void dividePiece(Function &f, Update &u) {
    Builder b(f.body, u.adam);
    b.loc = u.adam->loc;
    llvm::SmallVector<Value *, 8> operands(u.adam->operands());
    Op *whole[] = {operands[0]->def, operands[2]->def, operands[3]->def};
    for (unsigned i : {0u, 2u, 3u}) {
      State *s = m.state(operands[i]->def->state);
      divide(*s);
      operands[i] = b.read(*s);
    }
    Op *adam = b.op(OpKind::adamw, operands, u.adam->attrs);
    for (unsigned i = 0; i < adam->numResults(); ++i) {
      Value *old = u.adam->result(i);
      llvm::SmallVector<Op *, 4> users(old->users());
      for (Op *user : users) {
        GPTC_CHECK(user->is(OpKind::write), "'{}' uses a result of adamw", user->name());
        user->setOperand(0, adam->result(i));
      }
    }
    u.adam->erase();
    u.adam = adam;
    for (Op *read : whole)
      if (read->result()->unused())
        read->erase();
  }

  /// Step 5.
  void giveWhole(Function &last, Update &u) {
    State *low = nullptr;
    for (const auto &s : m.states)
      if (s->attrs.getString("kind") == "low" && s->attrs.getString("of") == u.param->name)
        low = s.get();
    const Type type = wholeType(*u.param);
    if (low) {
      if (stage < 3) {
        gatherInto(last, *low, low->type);
      } else {
        const Type whole = low->type;
        divide(*low);
        gatherAtUses(*low, whole, u.adam);
      }
    }
    if (stage == 3) {
      gatherAtUses(*u.param, type, u.adam);
      return;
    }
    bool read = false;
    for (const auto &f : m.functions)
      for (Op &op : f->body)
        read |= readsOther(op, *u.param, u.adam);
    if (!read)
      return;
    State *whole = m.addState("whole." + u.param->name, type);
    whole->attrs = attrs({{"kind", std::string("whole")}, {"of", u.param->name}});
    for (const auto &f : m.functions)
      for (Op &op : f->body)
        if (readsOther(op, *u.param, u.adam)) {
          op.state = whole->name;
          op.result()->type = type;
        }
    Builder b(last.body, last.body.back());
    b.loc = whole->name;
    b.write(*whole, b.op(OpKind::all_gather, {u.adam->result(0)}, {type}, how(false))->result());
  }

  /// Whether this reads the whole of a parameter, not the piece that is updated.
  static bool readsOther(const Op &op, const State &s, const Op *adam) {
    return op.is(OpKind::read) && op.state == s.name && !(op.result()->hasOneUse() && op.result()->users()[0] == adam);
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
  void gatherAtUses(State &s, const Type &whole, const Op *adam) {
    for (const auto &f : m.functions) {
      llvm::DenseMap<const Op *, int> position;
      int n = 0;
      std::vector<Op *> reads;
      for (Op &op : f->body) {
        position[&op] = n++;
        if (readsOther(op, s, adam))
          reads.push_back(&op);
      }
      for (Op *read : reads) {
        llvm::SmallVector<Op *, 4> users(read->result()->users());
        llvm::sort(users, [&](Op *a, Op *b) { return position[a] < position[b]; });
        users.erase(std::unique(users.begin(), users.end()), users.end());
        read->result()->type = s.type;
        Value *gathered = nullptr;
        int at = 0;
        for (Op *user : users) {
          if (!gathered || position[user] - at > farAway) {
            Builder b(f->body, user);
            b.loc = s.name;
            b.layer = user->layer;
            gathered = b.op(OpKind::all_gather, {read->result()}, {whole}, how(false))->result();
          }
          at = position[user];
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
  const Mesh mesh = Mesh::of(m);
  const int64_t stage = m.attrs.getInt("zero_stage", 0);
  if (m.attrs.getBool("partitioned") || (mesh.ranks() == 1 && m.attrs.getInt("shards", 1) == 1))
    return false;
  if (mesh.tensor != 1)
    throw UserError(ErrorCode::NotBuiltYet,
                    fmt::format("tensor = {}: tensor parallelism is not built yet", mesh.tensor), "leave tensor at 1");
  if (stage < 0 || stage > 3)
    throw UserError(ErrorCode::GirInvalid, fmt::format("zero_stage = {} is none of 0, 1, 2, 3", stage));
  Partition(m).run();
  m.attrs.set("partitioned", true);
  return true;
}

}  // namespace gptc
