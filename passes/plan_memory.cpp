// Offsets for everything that a module keeps in memory, in one arena: states first, then one region that all
// functions share for arguments, temporaries and workspaces. ir/plan_check.h says what the result promises.
//
//   1. In each function, a read behind a write of the same state becomes the value written, and of several writes of
//      a state only the last stays: afterwards a state is written at most once, behind all its reads.
//   2. A written value should be computed where the state lies. That is legal when it is a result of a group, goes to
//      no other state, and no later op uses the old content; the group itself may use it where mayShare (ir/access.h)
//      allows. Where it is not legal, a group that copies the value goes just before the write; and where the old
//      content is used behind that, those uses get a copy made before the write.
//   3. Other results of groups, arguments and workspaces live from their op to the last use (through views), results
//      of the function to its end; workspaces during one op.
//   4. A result takes the place of an operand of equal size that nobody uses afterwards, where mayShare allows: less
//      memory, and the store hits the cache line that was just loaded.
//   5. The rest is placed by decreasing size, ties by first position: each at the lowest offset in whose bytes
//      nothing lies that lives at the same time (greedy by size, Pisarchyk & Lee 2020, "Efficient memory management
//      for deep neural net inference").
//   6. arena_bytes is the end of the largest function's region.
#include "passes/pass.h"

#include "ir/access.h"
#include "ir/diagnostics.h"
#include "ir/opdef.h"
#include "ir/plan_check.h"
#include "passes/analysis/liveness.h"

#include <algorithm>

namespace gptc {

namespace {

/// Step 1.
void forwardWrites(Function &f) {
  llvm::StringMap<Op *> written;
  for (Op *op = f.body.front(), *next; op; op = next) {
    next = op->next();
    if (op->is(OpKind::read)) {
      if (Op *w = written.lookup(op->state)) {
        op->result()->replaceAllUsesWith(w->operand(0));
        op->erase();
      }
    } else if (op->is(OpKind::write)) {
      Op *&w = written[op->state];
      if (w)
        w->erase();
      w = op;
    }
  }
}

/// A group of its own that copies `v`, before `before`.
Value *copyOf(Value *v, Op *before) {
  Block &block = *before->parent();
  Op *group = block.insert(OpKind::fused, before);
  group->attrs = attrs({{"kind", std::string("pointwise")}});
  group->loc = "copy";
  group->addOperand(v);
  group->body = std::make_unique<Block>();
  Builder b(*group->body);
  Value *x = group->body->addArg(v->type, "x");
  Value *y = b.value(OpKind::cast, {x}, attrs({{"dtype", nameOf(v->type.dtype).str()}}));
  b.op(OpKind::yield, {y}, llvm::ArrayRef<Type>());
  return group->addResult(v->type, v->name);
}

/// Steps 2 to 5 for one function.
class FunctionPlanner {
public:
  FunctionPlanner(Module &m, Function &f) : m(m), f(f) {}

  /// Step 2.
  void settleWrites() {
    std::vector<Op *> writes;
    for (Op &op : f.body) {
      if (op.is(OpKind::write))
        writes.push_back(&op);
      else if (!op.isOneOf(OpKind::read, OpKind::ret, OpKind::reshape, OpKind::fused))
        throw UserError(ErrorCode::GirInvalid,
                        fmt::format("@{}: '{}' stands outside of a group", f.name, op.name().str()),
                        "run the pass 'fuse' before plan-memory");
    }
    number();
    llvm::DenseMap<const Value *, const Op *> home;  // value -> the write that gives it its place
    for (Op *w : writes) {
      Value *v = w->operand(0), *root = rootOf(v);
      if (root->def && root->def->is(OpKind::read) && root->def->state == w->state) {
        w->erase();  // it holds that already
        continue;
      }
      if (root->def && root->def->is(OpKind::fused) && !home.count(root) && mayReplace(*w, *root->def, root->index)) {
        home[root] = w;
        continue;
      }
      // Uses of the old content behind the write come to use a copy; then the new content is copied in.
      llvm::SmallVector<std::pair<Op *, unsigned>, 4> late;
      forUsesOf(w->state, [&](Op *user, unsigned operand, Value *) {
        if (position[user] > position[w])
          late.push_back({user, operand});
      });
      llvm::DenseMap<Value *, Value *> copies;
      for (auto [user, operand] : late) {
        Value *use = user->operand(operand), *root = rootOf(use);
        if (!copies.lookup(root))
          copies[root] = copyOf(root, w);
        Value *copy = copies[root];
        if (use != root)
          copy = Builder(f.body, w).op(OpKind::reshape, {copy}, {use->type})->result();
        user->setOperand(operand, copy);
      }
      Value *copy = copyOf(v, w);
      w->setOperand(0, copy);
      home[copy] = w;
      number();
    }
    // Reads and views that nobody uses would seem to need content that is gone.
    for (Op *op = f.body.back(), *before; op; op = before) {
      before = op->prev();
      if (op->isOneOf(OpKind::read, OpKind::reshape) && op->result()->unused())
        op->erase();
    }
  }

  /// Places everything from `base` on; returns where it ends.
  int64_t place(int64_t base) {
    std::vector<LiveRange> ranges = liveRanges(f);
    std::vector<size_t> host = shareDying(ranges);
    std::vector<size_t> order(ranges.size());
    for (size_t i = 0; i < order.size(); ++i)
      order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ranges[a].bytes > ranges[b].bytes; });

    std::vector<int64_t> offset(ranges.size());
    std::vector<size_t> placed;  // by offset
    int64_t end = base;
    for (size_t i : order) {
      if (host[i] != i)
        continue;
      const LiveRange &r = ranges[i];
      int64_t at = base;
      for (size_t j : placed) {
        const LiveRange &o = ranges[j];
        if (o.end < r.begin || r.end < o.begin || offset[j] + o.bytes <= at)
          continue;
        if (offset[j] >= at + r.bytes)
          break;
        at = offset[j] + o.bytes;
      }
      offset[i] = at;
      end = std::max(end, at + r.bytes);
      if (end > (int64_t(1) << 60))
        throw UserError(ErrorCode::TooLarge, fmt::format("@{} needs more bytes than can be addressed", f.name),
                        "use a smaller batch or model");
      placed.insert(
          std::upper_bound(placed.begin(), placed.end(), at, [&](int64_t a, size_t j) { return a < offset[j]; }), i);
    }
    for (size_t i = 0; i < ranges.size(); ++i)
      offset[i] = offset[host[i]];
    record(ranges, offset);
    return end;
  }

private:
  Module &m;
  Function &f;
  llvm::DenseMap<const Op *, int> position;
  llvm::StringMap<std::vector<Op *>> reads;  // by state

  void number() {
    int n = 0;
    reads.clear();
    for (Op &op : f.body) {
      position[&op] = n++;
      if (op.is(OpKind::read))
        reads[op.state].push_back(&op);
    }
  }

  /// Every operand slot that shows the content which a state has at the start, views included.
  template <typename F> void forUsesOf(llvm::StringRef state, F visit) {
    for (Op *read : reads.lookup(state)) {
      llvm::SmallVector<Value *, 4> todo = {read->result()};
      while (!todo.empty()) {
        Value *v = todo.pop_back_val();
        llvm::SmallVector<Op *, 8> users(v->users());
        std::sort(users.begin(), users.end(), [&](Op *a, Op *b) { return position[a] < position[b]; });
        users.erase(std::unique(users.begin(), users.end()), users.end());
        for (Op *user : users)
          if (user->is(OpKind::reshape))
            todo.push_back(user->result());
          else
            for (unsigned i = 0; i < user->numOperands(); ++i)
              if (user->operand(i) == v)
                visit(user, i, v);
      }
    }
  }

  /// Step 4: for each range the one in whose place it lies (often itself), which is extended to live as long.
  std::vector<size_t> shareDying(std::vector<LiveRange> &ranges) {
    std::vector<size_t> host(ranges.size());
    std::vector<const Op *> takenBy(ranges.size());  // a result that nobody uses does not extend what it takes over
    llvm::DenseMap<const Value *, size_t> of;
    number();
    for (size_t i = 0; i < ranges.size(); ++i) {
      host[i] = i;
      const LiveRange &r = ranges[i];
      if (!r.value)
        continue;
      of[r.value] = i;
      if (!r.op || !r.op->is(OpKind::fused))
        continue;
      for (const Value *v : r.op->operands()) {
        auto dying = of.find(rootOf(v));
        if (dying == of.end())
          continue;
        size_t h = host[dying->second];
        if (ranges[h].end != position[r.op] || takenBy[h] == r.op || ranges[h].bytes != r.bytes ||
            !mayTakeOver(*r.op, r.value->index, rootOf(v)))
          continue;
        host[i] = h;
        takenBy[h] = r.op;
        ranges[h].end = r.end;
        break;
      }
    }
    return host;
  }

  /// Whether a result may lie where `root` lies, which the group may use as several operands.
  bool mayTakeOver(const Op &group, unsigned result, const Value *root) {
    bool legal = true;
    for (unsigned i = 0; legal && i < group.numOperands(); ++i)
      if (rootOf(group.operand(i)) == root)
        legal = mayShare(group, result, i);
    return legal;
  }

  bool mayReplace(const Op &write, const Op &group, unsigned result) {
    bool legal = true;
    forUsesOf(write.state, [&](Op *user, unsigned operand, Value *) {
      if (user == &group)
        legal &= mayShare(group, result, operand);
      else
        legal &= position[user] < position[&group];
    });
    return legal;
  }

  void record(llvm::ArrayRef<LiveRange> ranges, llvm::ArrayRef<int64_t> offset) {
    llvm::DenseMap<const Value *, int64_t> at;
    llvm::DenseMap<const Op *, std::vector<int64_t>> workspaces;
    for (size_t i = 0; i < ranges.size(); ++i)
      if (ranges[i].value)
        at[ranges[i].value] = offset[i];
      else
        workspaces[ranges[i].op].push_back(offset[i]);
    for (Op &op : f.body) {
      if (op.is(OpKind::read))
        at[op.result()] = m.state(op.state)->attrs.getInt("at");
      if (op.is(OpKind::write))
        at[rootOf(op.operand(0))] = m.state(op.state)->attrs.getInt("at");
    }
    std::vector<int64_t> args;
    for (const auto &a : f.body.args)
      args.push_back(at.lookup(a.get()));
    f.attrs.set("args_at", args);
    for (Op &op : f.body) {
      if (!op.isOneOf(OpKind::fused, OpKind::reshape))
        continue;
      std::vector<int64_t> results;
      for (unsigned i = 0; i < op.numResults(); ++i)
        results.push_back(at.lookup(rootOf(op.result(i))));
      op.attrs.set("at", results);
      if (auto it = workspaces.find(&op); it != workspaces.end())
        op.attrs.set("ws_at", it->second);
    }
  }
};

}  // namespace

bool planMemory(Module &m, const PassOptions &) {
  int64_t base = 0;
  for (auto &s : m.states) {
    s->attrs.set("at", base);
    base += alignedBytes(s->type);
    if (base > (int64_t(1) << 60))
      throw UserError(ErrorCode::TooLarge, "the states need more bytes than can be addressed", "use a smaller model");
  }
  int64_t end = base;
  for (auto &f : m.functions) {
    forwardWrites(*f);
    FunctionPlanner planner(m, *f);
    planner.settleWrites();
    end = std::max(end, planner.place(base));
  }
  m.attrs.set("arena_bytes", end);
  std::vector<std::string> errors = checkPlan(m);
  GPTC_CHECK(errors.empty(), "{}", fmt::join(errors, "\n"));
  return true;
}

}  // namespace gptc
