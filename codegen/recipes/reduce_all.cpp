// The reduce_all recipe: sums over all elements, such as the sum of squares for a gradient norm.
//
//   1. The flattened logical tensor is cut into blocks of the op's `block` elements. Element i of a block is added to
//      lane i mod 64, in order; then the lanes are folded by halves, and the block's sum is stored to a workspace. A
//      task takes several blocks. On CUDA a thread is up to `vec` neighbouring lanes, which it loads by one access
//      where they are neighbours in memory; the threads of a CUDA block take as many blocks as they have lanes for.
//   2. One task adds the blocks' sums in order from +0 and stores the results that depend on them.
#include "codegen/recipes/place.h"
#include "codegen/recipes/pointwise.h"
#include "codegen/recipes/recipe.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <numeric>

namespace gptc {

using namespace kir;

namespace {

constexpr int lanes = 64;

bool matches(const Op &fused) {
  Type domain = groupDomain(fused);
  bool any = false;
  int64_t block = 0;
  for (const Op &op : *fused.body) {
    if (op.isOneOf(OpKind::constant, OpKind::yield, OpKind::reshape))
      continue;
    FusionKind f = op.def().fusion;
    if (f == FusionKind::reduce_all) {
      int64_t n = op.attrs.getInt("block", 4096);
      if (!sameExtents(op.operand(0)->type.dims, domain.dims) || (any && n != block))
        return false;
      block = n, any = true;
    } else if (f != FusionKind::pointwise && f != FusionKind::gather) {
      return false;
    }
  }
  return any;
}

Schedule defaults(const Op &fused, const Target &target) {
  Schedule s;
  Type domain = groupDomain(fused);
  if (target.isCuda()) {
    s.threads = lanes;
    s.vec = target.lanes(DType::f32);
    return s;
  }
  s.task = elementsPerTask(domain.elements(), trafficPerElement(fused, domain), target);
  s.vec = 2 * target.lanes(DType::f32);  // of the loops that hold no sum
  return s;
}

std::vector<Schedule> space(const Op &, const Schedule &base, const Target &target) {
  if (target.isCuda())
    return ScheduleGrid(base).over(&Schedule::threads, {64, 128, 256}).over(&Schedule::vec, {1, 2, 4}).take();
  return ScheduleGrid(base).over(&Schedule::task, {base.task / 4, base.task / 2, base.task, 2 * base.task}).take();
}

/// The kernel of one group.
class Sums {
public:
  Sums(const Op &fused, const Schedule &s, DType compute)
      : s(s), g(fused, compute), domain(groupDomain(fused)), elements(domain.elements()) {
    point.add(base + kir::ref(c), domain.dims);
    g.setDomain(point);
    std::vector<Expr> roots;
    for (unsigned i = 0; i < fused.numResults(); ++i) {
      const Type &type = fused.result(i)->type;
      if (type.isScalar())
        roots.push_back(scalars.emplace_back(i, placer.intern(g.at(g.output(i), Point()))).value);
      else if (sameExtents(type.dims, domain.dims))
        full.push_back({i, g.at(g.output(i), point)});
      else
        others.push_back(i);
    }
    sums = collect(roots, [](const Expr &e) { return e->kind == ExprKind::Reduce; });
    GPTC_CHECK(!sums.empty(), "no sum in a reduce_all group");
    block = std::min(sums[0]->fold, roundUp(elements, lanes)), blocks = ceilDiv(elements, block);
    for (const Expr &e : sums)
      GPTC_CHECK(e->axis == ReduceAxis::all && e->bop == BinaryOp::add && e->fold == sums[0]->fold,
                 "sums of different kinds in a group");
  }

  LoweredGroup build() {
    LoweredGroup out;
    for (const Expr &e : sums) {
      workspaces.push_back(makeBuffer("ws", e->dtype, Storage::global, blocks, true));
      out.workspaceBytes.push_back(blocks * sizeOf(e->dtype));
    }
    out.kernel.name = g.kernelName();
    out.kernel.params = g.params(workspaces);
    out.kernel.body.push_back(onCuda() ? blocksByThreads() : blocksByTasks());
    for (unsigned i : others)
      out.kernel.body.push_back(pointwiseLoops(g, {i}, s));
    out.kernel.body.push_back(sumOfBlocks());
    return out;
  }

private:
  struct Output {
    unsigned result;
    Expr value;
  };
  const Schedule &s;
  GroupEval g;
  Placer placer;
  const Type domain;
  const int64_t elements;
  Var t = makeVar("t"), b = makeVar("b"), c = makeVar("c");
  Expr base = kir::ref(makeVar("base"));  // of the block's elements
  Point point;
  std::vector<Output> full, scalars;
  std::vector<unsigned> others;  // results of other shapes
  std::vector<Expr> sums;
  int64_t block, blocks;
  std::vector<Buffer> workspaces;  // the sums of the blocks

  bool onCuda() const { return s.threads > 0; }

  /// Adds element c of the block at `base` to accs[...][slot] of each sum, and stores the full results at this element.
  void addElement(Seq &element, llvm::ArrayRef<Buffer> accs, const Expr &slot) {
    std::vector<Expr> values;
    for (const Expr &e : sums)
      values.push_back(e->args[0]);
    for (const Output &o : full)
      values.push_back(o.value);
    values = placer.place(values, values.size() > 1);
    for (unsigned k = 0; k < sums.size(); ++k)
      element.add(store(accs[k], slot, load(accs[k], slot) + values[k]));
    for (unsigned k = 0; k < full.size(); ++k) {
      Stmt st = g.storeOutput(full[k].result, point, values[sums.size() + k]);
      element.add(store(st->buffer, placer.place(st->index), st->value));
    }
  }

  /// Number of elements of the block at `base`. Threads that take several blocks may begin behind the last element.
  Expr countHere(int64_t together = 1) {
    if (elements % (block * together) == 0)
      return imm(block);
    const Expr count = min(imm(block), imm(elements) - base);
    return placer.let("count", together > 1 ? max(count, imm(0)) : count);
  }

  /// Lanes of a thread on CUDA: neighbours that no padding parts, fewer if the threads have lanes for all blocks.
  int lanesOfThread() const {
    int64_t together = std::gcd(block, int64_t(powerOfTwo(s.vec, 8)));
    if (domain.rank() > 1)
      for (const Dim &d : llvm::ArrayRef<Dim>(domain.dims).drop_front())
        if (d.padded != d.logical)
          together = std::gcd(together, domain.dim(-1));
    while (together > 1 && s.threads * together > blocks * lanes)
      together /= 2;
    return int(together);
  }

  /// Step 1 on CUDA.
  Stmt blocksByThreads() {
    const int width = lanesOfThread(), threadsOfBlock = lanes / width;
    const int64_t here = std::clamp<int64_t>(s.threads / threadsOfBlock, 1, blocks);  // blocks of a CUDA block
    Var group = makeVar("group"), i = makeVar("i"), v = makeVar("v"), w = makeVar("v"), z = makeVar("v");
    Seq some, thread, step, each, rest, last;
    placer.push(some, {group});
    const Expr first = placer.let("first", kir::ref(group) * imm(here));
    std::vector<Buffer> accs, parts;
    placer.push(thread, {t});
    const Expr one = here > 1 ? placer.let("one", kir::ref(t) / imm(threadsOfBlock)) : imm(0),
               lane0 = placer.let("lane", kir::ref(t) % imm(threadsOfBlock) * imm(width));
    placer.let(base->var, (first + one) * imm(block));
    const Expr count = countHere(here);
    for (const Expr &e : sums) {
      parts.push_back(makeBuffer("part", e->dtype, Storage::shared, here * lanes));
      some.alloc(parts.back());
      accs.push_back(makeBuffer("acc", e->dtype, Storage::reg, width));
      thread.alloc(accs.back());
    }
    auto vector = [&](const Var &of, const Expr &extent, std::vector<Stmt> body) {
      return loop(LoopKind::vector, of, extent, std::move(body), width);
    };
    auto perSum = [&](const Var &of, const std::function<Stmt(unsigned k)> &statement) {
      std::vector<Stmt> all;
      for (unsigned k = 0; k < sums.size(); ++k)
        all.push_back(statement(k));
      return vector(of, imm(width), std::move(all));
    };
    thread.add(perSum(z, [&](unsigned k) { return store(accs[k], lane(), fimm(0, sums[k]->dtype)); }));
    const Expr whole = placer.let("whole", count / imm(lanes));
    placer.push(step, {i});
    placer.push(each, {v});
    placer.let(c, kir::ref(i) * lanes + lane0 + kir::ref(v));
    addElement(each, accs, lane());
    placer.pop();
    step.add(vector(v, imm(width), each.take()));
    placer.pop();
    thread.add(loop(LoopKind::serial, i, whole, step.take()));
    if (elements % lanes || block % lanes) {
      const Expr left = placer.let("left", count % imm(lanes) - lane0);
      placer.push(rest, {w});
      placer.let(c, whole * lanes + lane0 + kir::ref(w));
      addElement(rest, accs, lane());
      placer.pop();
      thread.add(elements % width || block % width ? vector(w, max(min(left, imm(width)), imm(0)), rest.take())
                                                   : ifThen(lt(imm(0), left), {vector(w, imm(width), rest.take())}));
    }
    const Expr place = placer.let("place", one * lanes + lane0);
    thread.add(
        perSum(makeVar("v"), [&](unsigned k) { return store(parts[k], place + lane(), load(accs[k], lane())); }));
    placer.pop();
    some.add(loop(LoopKind::block_thread, t, imm(here * threadsOfBlock), thread.take()));
    for (int64_t n = 0; n < here; ++n)
      for (unsigned k = 0; k < sums.size(); ++k) {
        Stmt keep =
            store(workspaces[k], first + n, placer.let("sum", hreduce(parts[k], BinaryOp::add, imm(n * lanes), lanes)));
        last.add(blocks % here ? ifThen(lt(first + n, imm(blocks)), {keep}) : keep);
      }
    some.add(loop(LoopKind::block_thread, makeVar("t"), imm(1), last.take()));
    placer.pop();
    return loop(LoopKind::grid, group, imm(ceilDiv(blocks, here)), some.take());
  }

  /// Step 1 on the CPU.
  Stmt blocksByTasks() {
    int64_t each = std::clamp<int64_t>(s.task / block, 1, blocks), tasks = ceilDiv(blocks, each);
    each = ceilDiv(blocks, tasks), tasks = ceilDiv(blocks, each);
    Seq task, one, element;
    placer.push(task, {t});
    Expr first = placer.let("first", kir::ref(t) * imm(each));
    Expr here = blocks % each ? placer.let("n", min(imm(each), imm(blocks) - first)) : imm(each);
    placer.push(one, {b});
    Expr number = placer.let("block", first + kir::ref(b));
    placer.let(base->var, number * imm(block));
    Expr count = countHere();
    std::vector<Buffer> accs;
    for (const Expr &e : sums) {
      Buffer acc = makeBuffer("acc", e->dtype, Storage::reg, lanes);
      one.alloc(acc);
      one.add(loop(LoopKind::vector, makeVar("i"), imm(lanes), {store(acc, lane(), fimm(0, e->dtype))}, lanes));
      accs.push_back(acc);
    }
    placer.push(element, {c});
    addElement(element, accs, lane());
    placer.pop();
    one.add(loop(LoopKind::vector, c, count, element.take(), lanes));
    for (unsigned k = 0; k < sums.size(); ++k)
      one.add(store(workspaces[k], number, hreduce(accs[k], BinaryOp::add)));
    placer.pop();
    task.add(loop(LoopKind::serial, b, here, one.take()));
    placer.pop();
    return tasksLoop(t, tasks, task.take());
  }

  /// Step 2.
  Stmt sumOfBlocks() {
    Seq task, add;
    placer.push(task, {});
    std::map<const ExprNode *, Expr> memo;
    for (unsigned k = 0; k < sums.size(); ++k) {
      Buffer acc = makeBuffer("acc", sums[k]->dtype, Storage::reg, 1);
      task.alloc(acc);
      task.add(store(acc, imm(0), fimm(0, sums[k]->dtype)));
      add.add(store(acc, imm(0), load(acc, imm(0)) + load(workspaces[k], kir::ref(b))));
      memo[sums[k].get()] = load(acc, imm(0));
    }
    task.add(loop(LoopKind::serial, b, imm(blocks), add.take()));
    std::vector<Expr> values;
    for (const Output &o : scalars)
      values.push_back(substitute(o.value, memo, [](const Expr &) { return nullptr; }));
    values = placer.place(values);
    for (auto [o, value] : llvm::zip(scalars, values))
      task.add(g.storeOutput(o.result, Point(), value));
    placer.pop();
    return onCuda() ? threadsLoop(makeVar("t"), 1, 32, task.take()) : kir::block(task.take());
  }
};

LoweredGroup build(const Op &fused, const Schedule &s, const Target &, DType compute) {
  return Sums(fused, s, compute).build();
}

}  // namespace

const Recipe &reduce_allRecipe() {
  static const Recipe recipe = {RecipeKind::reduce_all, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc
