// The collective recipe: a list of calls for an engine of the runtime. It has no other schedules.
//
// The CPU's engines add in the order of a tree themselves, and there is no kernel. NCCL chooses its own order of sums.
// If the op asks for the tree's order on a GPU,
//   1. ranks exchange terms instead of sums: each rank receives all ranks' values of its part of the result. That takes
//      as many bytes as the least that a reduce_scatter can take.
//   2. The kernel adds them in the tree's order, element by element; for many ranks in passes of 32 terms.
//   3. The parts of an all_reduce are gathered.
#include "codegen/recipes/group_ctx.h"
#include "codegen/recipes/pointwise.h"
#include "codegen/recipes/recipe.h"
#include "support/diagnostics.h"

#include <numeric>

namespace gptc {

using namespace kir;

namespace {

/// All members are collectives of one axis, order and number of ranks on operands of the group, and only their results
/// are yielded.
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

/// Most terms of one expression. More are added in passes, so that a kernel's text does not grow with the ranks.
constexpr int64_t mostTerms = 32;
bool addsInPasses(int64_t ranks) { return ranks > mostTerms && ranks % mostTerms == 0; }

/// For each g < groups and i < n: sum[offset + g*each + i] = ((m(0) + m(1)) + (m(2) + m(3))) + ... of `terms` terms,
/// where m(r) = met[g*each + r*stride + i]. Each addition rounds to the dtype.
Stmt addTerms(const Buffer &met, const Buffer &sum, int64_t offset, int64_t n, int64_t terms, int64_t stride,
              int64_t groups, int64_t each, const Schedule &s) {
  const int64_t vec = std::gcd(std::gcd(n, offset), std::max(1, s.vec));
  Var t = makeVar("t"), c = makeVar("c");
  Expr at = kir::ref(t);
  if (groups > 1)
    at = at / imm(n / vec) * (each / vec) + at % imm(n / vec);
  if (vec > 1)
    at = at * vec + kir::ref(c);
  std::vector<Expr> level;
  for (int64_t r = 0; r < terms; ++r)
    level.push_back(load(met, at + r * stride));
  while (level.size() > 1) {
    std::vector<Expr> next;
    for (size_t i = 0; i < level.size(); i += 2)
      next.push_back(i + 1 < level.size() ? cast(met->dtype, level[i] + level[i + 1]) : level[i]);
    level = std::move(next);
  }
  const Stmt stored = store(sum, offset ? at + offset : at, level[0]);
  return threadsLoop(t, groups * (n / vec), s.threads,
                     {vec == 1 ? stored : loop(LoopKind::vector, c, imm(vec), {stored}, int(vec))});
}

/// sum[offset + i] = the tree's sum of met[i], met[n + i], ... over all ranks. A pass overwrites its first terms in
/// `met` with its sums.
void addAsTree(std::vector<Stmt> &body, const Buffer &met, const Buffer &sum, int64_t offset, int64_t n, int64_t ranks,
               const Schedule &s) {
  int64_t stride = n;
  for (; addsInPasses(ranks); ranks /= mostTerms, stride *= mostTerms)
    body.push_back(addTerms(met, met, 0, n, mostTerms, stride, ranks / mostTerms, mostTerms * stride, s));
  body.push_back(addTerms(met, sum, offset, n, ranks, stride, 1, 0, s));
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
      // The ranks share the elements of an all_reduce equally; all ranks add the rest, of fewer elements than ranks.
      const int64_t all = call.count, rest = op.is(OpKind::all_reduce) ? all % ranks : 0;
      auto meet = [&](int64_t count, int64_t offset) {
        const bool inParts = op.is(OpKind::all_reduce) && count % ranks == 0;
        const int64_t n = inParts ? count / ranks : count * call.segments;
        call.count = count, call.offset = offset;
        call.met = workspace("met", call.dtype, ranks * n, addsInPasses(ranks));
        call.summed = inParts ? std::optional(workspace("summed", call.dtype, n, true)) : std::nullopt;
        const Buffer sum = inParts ? workspaces.back() : g.outputs[i];
        addAsTree(out.kernel.body, workspaces[*call.met], sum, inParts ? 0 : offset, n, ranks, s);
        out.collectives->calls.push_back(call);
      };
      if (all > rest)
        meet(all - rest, 0);
      if (rest)
        meet(rest, all - rest);
      continue;
    }
    out.collectives->calls.push_back(call);
  }
  out.kernel.params = g.params(workspaces);
  return out;
}

}  // namespace

const Recipe &collectiveRecipe() {
  static const Recipe recipe{RecipeKind::collective, matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc
