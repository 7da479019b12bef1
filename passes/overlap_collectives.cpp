// Overlaps collectives with computation that does not need them and merges them into buckets: the overlap of DDP (Li et
// al. 2020, "PyTorch distributed") and the parameter prefetching of ZeRO. A group of collectives starts them; the op
// `done` (ir/ops/collective.cpp) waits for the results. The memory of the group is in use until then.
//
//   1. The level of an op is the longest chain of collectives along "data" on computed operands on which it depends. An
//      op that replaces a state's content has at least the level of every user of the old content. Ops are sorted by
//      level, else in the given order. So an op does not wait for a collective that it does not need, and collectives
//      of one level become neighbours.
//   2. A collective, except those of step 4, may start after its last operand and after the last use of a state whose
//      memory its result takes. It must be done before its first user. Collectives whose periods overlap form one
//      bucket, of at most `bucket` bytes (25 MiB): one message for many tensors costs one latency.
//   3. A reduce_scatter keeps its operands until it is done. On GPUs an all_reduce in tree order keeps its workspace
//      likewise. Such a bucket must be done when the second bucket after it starts, so that at most two are kept. Other
//      collectives write over their operands.
//   4. An all_gather of a state's content before its use (ZeRO stage 3) could start at any time, but its result takes
//      memory from then on. It starts where the bucket before it is needed: one is in use while the next one is
//      gathered. Gathers form one bucket if together they are no larger than the largest.
//   5. A bucket without computation between start and use runs where it is needed, without `done`.
//
// The bits of all results stay, as no sum changes its order. All ranks start buckets in the order of this one program,
// so they agree. Runs after settle-writes, which decides which results lie in states, and before select-recipes.
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
/// Whether the op is a group of collectives along "data". Those along "tensor" stand between two blocks, so that no
/// computation could run beside them.
bool isCollective(const Op &op) {
  return op.is(OpKind::fused) && kindOf(op) == RecipeKind::collective &&
         firstOf(op).isOneOf(OpKind::all_reduce, OpKind::reduce_scatter, OpKind::all_gather) &&
         firstOf(op).attrs.getString("axis") == "data";
}
bool sums(const Op &group) { return !firstOf(group).is(OpKind::all_gather); }

/// Whether the op only gives access to memory: a read or a reshape.
bool isView(const Op &op) { return op.isOneOf(OpKind::read, OpKind::reshape); }
bool isContent(const Value *v) { return rootOf(v)->def && rootOf(v)->def->is(OpKind::read); }

struct Bucket {
  std::vector<Op *> groups;
  int start = -1;   // starts after the op at this position
  int needed = -1;  // must be done before the op at this position
  int64_t bytes = 0;
  bool beside = false;  // whether computation runs between start and needed
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
  const int64_t most;  // maximum bytes of a bucket
  const bool gpu;
  std::vector<Op *> ops;
  llvm::DenseMap<const Op *, int> position;
  std::vector<Bucket> results;  // the buckets of step 2 in the order of their starts, then those of step 4

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
    llvm::StringMap<int> replaced;  // by state: the position of the group that computes its new content
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
          item.ready = std::max(item.ready, position.lookup(op) - 1);  // the other collective is done before this one
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

  /// Whether the group may join the bucket: same direction (sum or gather), axis, ranks and order.
  static bool together(const Bucket &b, const Op &group) {
    const Op &one = firstOf(*b.groups[0]), &other = firstOf(group);
    return sums(*b.groups[0]) == sums(group) && one.attrs.getString("axis") == other.attrs.getString("axis") &&
           one.attrs.getInt("ranks") == other.attrs.getInt("ranks") &&
           one.attrs.getString("order", "tree") == other.attrs.getString("order", "tree");
  }
  /// Step 3: whether the bucket keeps operands or workspaces until it is done.
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

  /// Merges the groups of a bucket into one at the end of the function. A bucket of one group stays as it is.
  Op *merged(const Bucket &b) {
    if (b.groups.size() == 1)
      return b.groups[0];
    Op *group = f.body.insert(OpKind::fused, f.body.back());
    group->attrs = b.groups[0]->attrs;
    group->loc = b.groups[0]->loc;
    group->layer = b.groups[0]->layer;
    auto body = std::make_unique<Block>();
    llvm::DenseMap<const Value *, Value *> arguments;  // from operands
    std::vector<std::pair<Value *, Value *>> yields;   // each result of the old groups, and its value in the new body
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
    llvm::DenseSet<const Op *> moved;  // writes of results of collectives; they go to the end
    llvm::DenseMap<const Bucket *, Op *> groupOf;
    llvm::DenseMap<const Bucket *, std::vector<Op *>> dones;
    llvm::DenseSet<const Op *> gone;
    std::vector<Op *> writes;
    for (const Bucket &b : results) {
      startsBehind[size_t(b.start) + 1].push_back(&b);
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
        return false;  // the pass has already run
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
