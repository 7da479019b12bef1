// The collective recipe: no kernel, but a list of what an engine has to do. Its space is empty.
#include "codegen/recipes/group_ctx.h"
#include "codegen/recipes/recipe.h"
#include "ir/diagnostics.h"

namespace gptc {

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
  s.threads = target.isCuda() ? int(target.warp) : 0;
  return s;
}

std::vector<Schedule> space(const Op &, const Schedule &, const Target &) { return {}; }

LoweredGroup build(const Op &fused, const Schedule &, const Target &, DType compute) {
  GroupEval g(fused, compute);
  LoweredGroup out;
  out.kernel.name = g.kernelName();
  out.kernel.params = g.params();
  const Op &first = *fused.body->front();
  out.collectives = Collectives{
      first.attrs.getString("axis"), first.attrs.getInt("ranks"), first.attrs.getString("order", "tree") == "tree", {}};
  for (unsigned i = 0; i < fused.numResults(); ++i) {
    const Op &op = *g.output(i)->def;
    if (op.is(OpKind::axis_index)) {
      out.collectives->calls.push_back({op.kind, 0, i, 1, DType::i64});
      continue;
    }
    const Type &piece = op.is(OpKind::all_gather) ? op.operand(0)->type : op.result()->type;
    CollectiveCall call{op.kind, op.operand(0)->index, i, piece.paddedElements(), g.storageOf(piece.dtype)};
    for (int64_t d = 0; d < op.attrs.getInt("dim"); ++d)
      call.segments *= piece.padded(int(d));
    call.count /= call.segments;
    if (op.is(OpKind::reduce_scatter)) {
      const Type &x = op.operand(0)->type;
      call.paddingFrom = x.paddedElements() / x.padded(0) * x.dim(0);
      call.padding = x.paddedElements() - call.paddingFrom;
    }
    out.collectives->calls.push_back(call);
  }
  return out;
}

}  // namespace

const Recipe &collectiveRecipe() {
  static const Recipe recipe{"collective", matches, defaults, space, build};
  return recipe;
}

}  // namespace gptc
