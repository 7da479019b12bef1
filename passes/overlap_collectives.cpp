// Collectives in buckets, beside the computation that does not need them: what DDP calls overlap (Li et al. 2020,
// "PyTorch distributed"), and ZeRO's prefetching of parameters. A group of collectives is a start; `done` (ir/ops/
// collective.cpp) is where its results are needed, and until then its memory is not anybody else's.
//
//   1. Levels. An op's level is the number of sums between ranks that its operands wait for, one behind the other. What
//      replaces a state's content has at least the level of every op that uses the old one. Ops are taken level by
//      level, in their order: so nothing that could go on waits for a sum, and equal collectives come together.
//   2. Each collective that follows from computation may start behind its last operand, and behind the last use of a
//      state in whose place its result lies; it must be done before its first user. Those that may start one after the
//      other are one bucket, up to `bucket` bytes (25 MiB): a message of many tensors costs the latency of one.
//   3. What a reduce_scatter reads is kept until it is done, and so is the workspace in which GPUs meet to add in the
//      order of a tree: these are done when the bucket after the next starts, so that no more than two buckets are kept
//      for them. What others read they replace.
//   4. A gather of a state's content before its use (ZeRO stage 3) could start at any time, and its result takes memory
//      from then on. It starts where the one before it is needed: one is in use while the next one comes. Those that
//      are together no larger than the largest are one bucket.
//   5. A bucket without computation beside it is no start: it is run where it is needed.
//
// The bits of all results are the same, as no sum changes its order; a bucket runs in the order of this one program, so
// that ranks agree. Behind settle-writes, which says which results lie in states; before select-recipes.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/opdef.h"
#include "passes/analysis/liveness.h"
#include "passes/analysis/state_uses.h"
#include "passes/decisions.h"
#include "support/diagnostics.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace gptc {

namespace {

const Op &firstOf(const Op &group) { return *group.body->front(); }
/// Along the axis "data". Those along "tensor" stand between one block and the next: nothing goes on beside them.
bool isCollective(const Op &op) {
  return op.is(OpKind::fused) && kindOf(op) == RecipeKind::collective &&
         firstOf(op).isOneOf(OpKind::all_reduce, OpKind::reduce_scatter, OpKind::all_gather) &&
         firstOf(op).attrs.getString("axis") == "data";
}
bool sums(const Op &group) { return !firstOf(group).is(OpKind::all_gather); }

/// What a state's content is seen through.
bool isView(const Op &op) { return op.isOneOf(OpKind::read, OpKind::reshape); }
bool isContent(const Value *v) { return rootOf(v)->def && rootOf(v)->def->is(OpKind::read); }

struct Bucket {
  std::vector<Op *> groups;
  int start = -1;   // behind the op at this position
  int needed = -1;  // before the op at this position
  int64_t bytes = 0;
  bool beside = false;
};

class Overlap {
public:
  Overlap(Function &f, int64_t most, bool gpu) : f(f), most(most), gpu(gpu) {}
  int groups = 0, starts = 0, buckets = 0;

  void run() {
    sortByLevel();
    number();
    collect();
    makeBuckets();
    place();
  }

private:
  Function &f;
  const int64_t most;  // bytes of a bucket
  const bool gpu;
  std::vector<Op *> ops;
  llvm::DenseMap<const Op *, int> position;
  std::vector<Bucket> results;  // those of step 2 in the order of their starts, then those of step 4

  void number() {
    ops.clear();
    position.clear();
    for (Op &op : f.body) {
      position[&op] = int(ops.size());
      ops.push_back(&op);
    }
  }

  /// Step 1.
  void sortByLevel() {
    number();
    llvm::DenseMap<const Op *, int> level;
    const StateUses uses(f);
    for (bool changed = true; changed;) {
      changed = false;
      auto raise = [&](const Op *op, int to) {
        int &l = level[op];
        changed |= l < to;
        l = std::max(l, to);
      };
      for (const Op *op : ops) {
        for (const Value *v : op->operands())
          if (v->def) {
            const bool waits = isCollective(*v->def) && !llvm::all_of(v->def->operands(), isContent);
            raise(op, level.lookup(v->def) + waits);
          }
        if (op->is(OpKind::ret))
          for (const Op *other : ops)
            raise(op, level.lookup(other));
        if (op->is(OpKind::write))
          if (const Op *group = rootOf(op->operand(0))->def)
            for (const StateUses::Use &use : uses.usesOf(op->state))
              raise(group, level.lookup(use.user));
      }
    }
    std::vector<Op *> sorted = ops;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const Op *a, const Op *b) { return level.lookup(a) < level.lookup(b); });
    reorder(sorted);
  }

  void reorder(llvm::ArrayRef<Op *> order) {
    for (Op *op : order.drop_back())
      op->moveBefore(order.back());
  }

  struct Item {
    Op *group;
    int ready, needed;
    int64_t bytes;
  };
  std::vector<Item> pushed, pulled;  // steps 2 and 4

  void collect() {
    const StateUses uses(f);
    llvm::StringMap<int> replaced;  // where a state's content goes
    for (Op *op : ops)
      if (op->is(OpKind::write))
        if (const Op *group = rootOf(op->operand(0))->def)
          replaced[op->state] = position.lookup(group);
    for (Op *op : ops) {
      if (!isCollective(*op))
        continue;
      Item item{op, -1, int(ops.size()) - 1, 0};
      bool writes = false;
      for (const Value *v : op->operands()) {
        const Op *root = rootOf(v)->def;
        if (root && root->is(OpKind::read)) {
          if (auto it = replaced.find(root->state); it != replaced.end() && it->second > position.lookup(op))
            item.needed = std::min(item.needed, it->second);
        } else if (root && isCollective(*root)) {
          item.ready = std::max(item.ready, position.lookup(op) - 1);  // where that one is done
        } else if (v->def) {
          item.ready = std::max(item.ready, position.lookup(v->def));
        }
        item.bytes += alignedBytes(v->type);
      }
      for (unsigned i = 0; i < op->numResults(); ++i) {
        for (const Op *user : op->result(i)->users())
          if (user->is(OpKind::write)) {
            writes = true;
            for (const StateUses::Use &use : uses.usesOf(user->state))
              if (use.user != op)
                item.ready = std::max(item.ready, position.lookup(use.user));
          } else {
            item.needed = std::min(item.needed, position.lookup(user));
          }
      }
      if (!sums(*op)) {
        item.bytes = 0;
        for (unsigned i = 0; i < op->numResults(); ++i)
          item.bytes += alignedBytes(op->result(i)->type);
      }
      const bool content = llvm::all_of(op->operands(), isContent);
      (content && !sums(*op) && !writes ? pulled : pushed).push_back(item);
    }
    groups = int(pushed.size() + pulled.size());
  }

  static bool together(const Bucket &b, const Op &group) {
    const Op &one = firstOf(*b.groups[0]), &other = firstOf(group);
    return sums(*b.groups[0]) == sums(group) && one.attrs.getString("axis") == other.attrs.getString("axis") &&
           one.attrs.getInt("ranks") == other.attrs.getInt("ranks") &&
           one.attrs.getString("order", "tree") == other.attrs.getString("order", "tree");
  }
  bool keepsMemory(const Bucket &b) const {
    for (const Op *group : b.groups)
      for (const Op &op : *group->body)
        if (op.is(OpKind::reduce_scatter) ||
            (gpu && op.is(OpKind::all_reduce) && op.attrs.getString("order", "tree") == "tree"))
          return true;
    return false;
  }

  void makeBuckets() {
    std::stable_sort(pushed.begin(), pushed.end(), [](const Item &a, const Item &b) { return a.ready < b.ready; });
    for (const Item &i : pushed) {
      Bucket *b = results.empty() ? nullptr : &results.back();
      if (b && together(*b, *i.group) && i.ready < b->needed && b->start < i.needed && b->bytes + i.bytes <= most) {
        b->start = std::max(b->start, i.ready);
        b->needed = std::min(b->needed, i.needed);
        b->bytes += i.bytes;
        b->groups.push_back(i.group);
      } else {
        results.push_back({{i.group}, i.ready, i.needed, i.bytes});
      }
    }
    // Step 3.
    for (size_t i = 0; i + 2 < results.size(); ++i)
      if (keepsMemory(results[i]) && results[i + 2].start >= results[i].start)
        results[i].needed = std::min(results[i].needed, results[i + 2].start + 1);
    // Step 4.
    std::stable_sort(pulled.begin(), pulled.end(), [](const Item &a, const Item &b) { return a.needed < b.needed; });
    int64_t largest = 0;
    for (const Item &i : pulled)
      largest = std::max(largest, i.bytes);
    const size_t first = results.size();
    for (const Item &i : pulled) {
      Bucket *b = results.size() == first ? nullptr : &results.back();
      if (b && together(*b, *i.group) && b->bytes + i.bytes <= largest) {
        b->bytes += i.bytes;
        b->groups.push_back(i.group);
      } else {
        results.push_back({{i.group}, b ? b->needed - 1 : -1, i.needed, i.bytes});
      }
    }
    for (Bucket &b : results) {
      for (int p = b.start + 1; p < b.needed; ++p)
        b.beside |= ops[p]->is(OpKind::fused) && !isCollective(*ops[p]);
      if (!b.beside)
        b.start = b.needed - 1;  // step 5
      starts += b.beside;
    }
    buckets = int(results.size());
  }

  /// One group of all of a bucket, at the end of the function.
  Op *merged(const Bucket &b) {
    if (b.groups.size() == 1)
      return b.groups[0];
    Op *group = f.body.insert(OpKind::fused, f.body.back());
    group->attrs = b.groups[0]->attrs;
    group->loc = b.groups[0]->loc;
    group->layer = b.groups[0]->layer;
    auto body = std::make_unique<Block>();
    llvm::DenseMap<const Value *, Value *> arguments;  // from operands
    std::vector<std::pair<Value *, Value *>> yields;   // what a group made before, and makes in the body
    for (const Op *one : b.groups) {
      llvm::DenseMap<const Value *, Value *> map;
      for (unsigned i = 0; i < one->numOperands(); ++i) {
        Value *&argument = arguments[one->operand(i)];
        if (!argument) {
          argument = body->addArg(one->operand(i)->type, one->body->args[i]->name);
          group->addOperand(one->operand(i));
        }
        map[one->body->args[i].get()] = argument;
      }
      for (const Op &op : *one->body)
        if (op.is(OpKind::yield))
          for (unsigned i = 0; i < one->numResults(); ++i)
            yields.push_back({one->result(i), map.lookup(op.operand(i))});
        else
          cloneOp(op, *body, nullptr, map);
    }
    Op *yield = body->insert(OpKind::yield);
    group->body = std::move(body);
    for (auto [before, inside] : yields) {
      yield->addOperand(inside);
      before->replaceAllUsesWith(group->addResult(before->type, before->name));
    }
    return group;
  }

  /// Step 5, and the new order.
  void place() {
    const int last = int(ops.size()) - 1;
    std::vector<std::vector<const Bucket *>> startsBehind(ops.size() + 1), doneBefore(ops.size());
    llvm::DenseSet<const Op *> moved;  // placed by what they belong to
    llvm::DenseMap<const Bucket *, Op *> groupOf;
    llvm::DenseMap<const Bucket *, std::vector<Op *>> dones;
    llvm::DenseSet<const Op *> gone;
    std::vector<Op *> writes;
    for (const Bucket &b : results) {
      startsBehind[size_t(b.start + 1)].push_back(&b);
      doneBefore[size_t(b.needed)].push_back(&b);
      for (const Op *g : b.groups)
        gone.insert(g);
    }
    for (const Bucket &b : results) {
      Op *group = groupOf[&b] = merged(b);
      for (unsigned i = 0; i < group->numResults(); ++i) {
        Value *result = group->result(i);
        for (Op *user : result->users())
          if (user->is(OpKind::write) && moved.insert(user).second)
            writes.push_back(user);
        if (!b.beside)
          continue;
        const Value *inside = group->body->back()->operand(i);
        Value *read = group->operand(inside->def->operand(0)->index);
        Op *done = f.body.insert(OpKind::done, f.body.back());
        done->loc = group->loc;
        done->layer = group->layer;
        Value *there = done->addResult(result->type, result->name);
        result->replaceAllUsesWith(there);
        done->addOperand(result);
        done->addOperand(read);
        dones[&b].push_back(done);
      }
    }
    std::vector<Op *> order;
    llvm::DenseSet<const Op *> placed;
    auto put = [&](Op *op) {
      if (placed.insert(op).second)
        order.push_back(op);
    };
    for (int p = 0; p <= last; ++p) {
      for (const Bucket *b : doneBefore[size_t(p)])
        for (Op *done : dones[b])
          put(done);
      for (const Bucket *b : startsBehind[size_t(p)]) {
        Op *group = groupOf[b];
        for (const Value *v : group->operands()) {
          std::vector<Op *> views;
          for (Op *view = v->def; view && isView(*view) && !placed.contains(view);
               view = view->is(OpKind::read) ? nullptr : view->operand(0)->def)
            views.push_back(view);
          for (Op *view : llvm::reverse(views))
            put(view);
        }
        put(group);
      }
      if (p == last)
        for (Op *write : writes)
          put(write);
      if (!gone.contains(ops[p]) && !moved.contains(ops[p]))
        put(ops[p]);
    }
    for (const Bucket &b : results)
      if (b.groups.size() > 1)
        for (Op *g : b.groups)
          g->erase();
    reorder(order);
  }
};

}  // namespace

bool overlapCollectives(Module &m, const PassOptions &options) {
  std::vector<Function *> together;
  for (auto &f : m.functions) {
    bool any = false;
    for (const Op &op : f->body) {
      if (op.is(OpKind::done))
        return false;  // it has been here
      any |= isCollective(op);
    }
    if (any)
      together.push_back(f.get());
  }
  if (together.empty())
    return false;
  int groups = 0, starts = 0, buckets = 0;
  for (Function *f : together) {
    Overlap overlap(*f, options.values.getInt("bucket", 25 << 20), options.target && options.target->isCuda());
    overlap.run();
    groups += overlap.groups, starts += overlap.starts, buckets += overlap.buckets;
  }
  record(m, {"overlap-collectives",
             "buckets",
             fmt::format("{} collectives in {} buckets", groups, buckets),
             {},
             fmt::format("{} of them beside computation", starts),
             {}});
  return true;
}

}  // namespace gptc
