// The collective recipe: a list of what an engine has to do. Its space is empty.
//
// On the CPU engines add in the order of a tree themselves, and there is no kernel. On a GPU the order of NCCL's sums
// is NCCL's own; where it is to be the tree,
//   1. ranks exchange what they add rather than sums: each gets everybody's values of its part of the result, in as
//      many bytes as the least that a reduce_scatter can have. What does not divide into parts all get whole.
//   2. The kernel adds them in the tree's order, every element by itself.
//   3. Parts of an all_reduce are gathered.
#include "codegen/recipes/group_ctx.h"
#include "codegen/recipes/pointwise.h"
#include "codegen/recipes/recipe.h"
#include "ir/diagnostics.h"

#include <numeric>

namespace gptc {

using namespace kir;

namespace {

/// Collectives of one axis and order on operands of the group, each result yielded.
bool matches(const Op &fused) {
  const Op *first = nullptr;
  for (const Op &op : *fused.body) {
    if (op.is(OpKind::yield))
      continue;
    if (op.def().fusion != FusionKind::collective || (op.numOperands() && op.operand(0)->def))
      return false;
    if (!first)
      first = &op;
    for (const char *key : {"axis", "order"})
      if (op.attrs.getString(key, "tree") != first->attrs.getString(key, "tree"))
        return false;
    if (op.attrs.getInt("ranks") != first->attrs.getInt("ranks"))
      return false;
  }
  return first && llvm::all_of(fused.body->back()->operands(), [](const Value *v) { return v->def; });
}

Schedule defaults(const Op &, const Target &target) {
  Schedule s;
  if (target.isCuda())
    s.threads = 256, s.vec = target.lanes(DType::f32);
  return s;
}

std::vector<Schedule> space(const Op &, const Schedule &, const Target &) { return {}; }

/// sum[i] = ((met[i] + met[n + i]) + (met[2n + i] + met[3n + i])) + ..., rounded to the dtype after each addition.
Stmt addAsTree(const Buffer &met, const Buffer &sum, int64_t n, int64_t ranks, const Schedule &s) {
  const int64_t vec = std::gcd(n, std::max(1, s.vec));
  Var t = makeVar("t"), c = makeVar("c");
  const Expr at = vec == 1 ? kir::ref(t) : kir::ref(t) * vec + kir::ref(c);
  std::vector<Expr> level;
  for (int64_t r = 0; r < ranks; ++r)
    level.push_back(load(met, at + r * n));
  while (level.size() > 1) {
    std::vector<Expr> next;
    for (size_t i = 0; i < level.size(); i += 2)
      next.push_back(i + 1 < level.size() ? cast(met->dtype, level[i] + level[i + 1]) : level[i]);
    level = std::move(next);
  }
  const Stmt stored = store(sum, at, level[0]);
  return threadsLoop(t, n / vec, s.threads,
                     {vec == 1 ? stored : loop(LoopKind::vector, c, imm(vec), {stored}, int(vec))});
}

LoweredGroup build(const Op &fused, const Schedule &s, const Target &target, DType compute) {
  GroupEval g(fused, compute);
  LoweredGroup out;
  out.kernel.name = g.kernelName();
  const Op &first = *fused.body->front();
  out.collectives = Collectives{
      first.attrs.getString("axis"), first.attrs.getInt("ranks"), first.attrs.getString("order", "tree") == "tree", {}};
  const int64_t ranks = out.collectives->ranks;
  std::vector<Buffer> workspaces;
  auto workspace = [&](const char *name, DType dtype, int64_t elements, bool written) {
    const auto number = unsigned(workspaces.size());
    workspaces.push_back(makeBuffer(fmt::format("{}{}", name, number), dtype, Storage::global, elements, written));
    out.workspaceBytes.push_back(elements * int64_t(sizeOf(dtype)));
    return number;
  };
  for (unsigned i = 0; i < fused.numResults(); ++i) {
    const Op &op = *g.output(i)->def;
    if (op.is(OpKind::axis_index)) {
      out.collectives->calls.push_back({op.kind, 0, i, 1, DType::i64});
      continue;
    }
    const Type &piece = op.is(OpKind::all_gather) ? op.operand(0)->type : op.result()->type;
    CollectiveCall call{op.kind, op.operand(0)->index, i, piece.paddedElements(), g.storageOf(piece.dtype)};
    call.root = int(op.attrs.getInt("root"));
    for (int64_t d = 0; d < op.attrs.getInt("dim"); ++d)
      call.segments *= piece.padded(int(d));
    call.count /= call.segments;
    if (op.is(OpKind::reduce_scatter)) {
      const Type &x = op.operand(0)->type;
      call.paddingFrom = x.paddedElements() / x.padded(0) * x.dim(0);
      call.padding = x.paddedElements() - call.paddingFrom;
    }
    if (target.isCuda() && out.collectives->tree && ranks > 1 &&
        op.isOneOf(OpKind::all_reduce, OpKind::reduce_scatter)) {
      const bool inParts = op.is(OpKind::all_reduce) && call.count % ranks == 0;
      const int64_t n = inParts ? call.count / ranks : call.count * call.segments;
      call.met = workspace("met", call.dtype, ranks * n, false);
      if (inParts)
        call.summed = workspace("summed", call.dtype, n, true);
      const Buffer &sum = inParts ? workspaces.back() : g.outputs[i];
      out.kernel.body.push_back(addAsTree(workspaces[*call.met], sum, n, ranks, s));
    }
    out.collectives->calls.push_back(call);
  }
  out.kernel.params = g.params(workspaces);
  return out;
}

}  // namespace

const Recipe &collectiveRecipe() {
  static const Recipe recipe{"collective", matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc
