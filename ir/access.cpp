#include "ir/access.h"

#include "ir/facts.h"
#include "ir/opdef.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"

namespace gptc {

namespace {

/// Records which accessors a lowering rule calls. The expressions that they return have the right dtype but no meaning.
class Probe : public LowerCtx {
public:
  explicit Probe(const Op &op) : LowerCtx(op), seen(op.numOperands(), Access::none) {}
  std::vector<Access> seen;

  /// Whether `e` contains the first index.
  bool holdsFirst(const kir::Expr &e) {
    if (!e || here.empty() || !visited.insert(e.get()).second)
      return false;
    return (e->kind == kir::ExprKind::Var && e->var == here[0]->var) ||
           llvm::any_of(e->args, [&](const kir::Expr &a) { return holdsFirst(a); });
  }

  std::vector<kir::Expr> index() override {
    while (here.size() < domainOf(op).rank())
      here.push_back(kir::ref(kir::makeVar("i")));
    return here;
  }
  kir::Expr operand(unsigned i) override { return note(i, Access::point); }
  kir::Expr rowOperand(unsigned i) override { return note(i, Access::row); }
  kir::Expr operandAt(unsigned i, llvm::ArrayRef<kir::Expr> at) override {
    bool sameRow = onePerRow() && at.size() == here.size() && at.drop_back() == llvm::ArrayRef(here).drop_back();
    return note(i, sameRow ? Access::inRow : Access::anywhere);
  }
  kir::Expr stream() override { return kir::ref(kir::makeVar("stream")); }
  DType compute() override { return DType::f32; }

private:
  std::vector<kir::Expr> here;
  llvm::DenseSet<const kir::ExprNode *> visited;

  bool onePerRow() const {
    if (op.def().fusion != FusionKind::row)
      return false;
    for (unsigned i = 0; i < op.numResults(); ++i)
      if (op.result(i)->type.rank() >= domainOf(op).rank())
        return false;
    return true;
  }
  kir::Expr note(unsigned i, Access a) {
    seen[i] = std::max(seen[i], a);
    DType t = op.operand(i)->type.dtype;
    return kir::ref(kir::makeVar("x", isFloat(t) ? DType::f32 : t));
  }
};

}  // namespace

std::vector<Access> operandAccess(const Op &op) {
  if (!op.def().lower)
    return std::vector<Access>(op.numOperands(), Access::anywhere);
  Probe p(op);
  op.def().lower(p);
  return p.seen;
}

bool usesFirstIndex(const Op &op) {
  if (!op.def().lower)
    return true;
  Probe p(op);
  return llvm::any_of(op.def().lower(p), [&](const kir::Expr &e) { return p.holdsFirst(e); });
}

const Type &domainOf(const Op &op) {
  switch (op.def().fusion) {
  case FusionKind::row:
  case FusionKind::fold:
  case FusionKind::reduce_all:
    return op.operand(0)->type;
  default:
    return op.result()->type;
  }
}

bool mayStartTogether(const Op &fused) {
  const std::optional<RecipeKind> kind = kindOf(fused);
  return !runsOnHost(fused) && (kind == RecipeKind::pointwise || kind == RecipeKind::reduce_all);
}

bool mayShare(const Op &fused, unsigned result, unsigned operand) {
  const Value *out = fused.body->back()->operand(result), *in = fused.body->args[operand].get();
  if (!out->def || out->type.dtype != in->type.dtype || !out->type.sameShape(in->type))
    return false;
  const Op &maker = *out->def;
  switch (maker.def().fusion) {
  case FusionKind::fold:
  case FusionKind::matmul:
  case FusionKind::scatter: {
    // The operand's only use is as the beginning of this sum.
    const std::optional<unsigned> i = maker.def().beginningOf(out->index);
    return i && in->hasOneUse() && *i < maker.numOperands() && maker.operand(*i) == in;
  }
  case FusionKind::attention:
    // Operands are qkv, k, v, pos and the scales of a cache of 8 bits; results o, k, v and the scales.
    return maker.is(OpKind::attention_cached) && out->index > 0 && in->hasOneUse() &&
           maker.operand(out->index + (out->index > 2)) == in;
  case FusionKind::collective:
    return maker.is(OpKind::all_reduce) && in->hasOneUse() && maker.operand(0) == in;
  case FusionKind::pointwise:
  case FusionKind::gather:
  case FusionKind::row:
    break;
  default:
    return false;
  }
  llvm::DenseSet<const Value *> content = {in};  // the operand and casts of it
  for (const Op &op : *fused.body) {
    FusionKind kind = op.def().fusion;
    if (op.is(OpKind::cast) && content.contains(op.operand(0)))
      content.insert(op.result());
    if (op.is(OpKind::yield) || op.is(OpKind::constant))
      continue;
    // A row_fold kernel has read a batch of rows before it stores one of them.
    if (kind != FusionKind::pointwise && kind != FusionKind::gather && kind != FusionKind::row &&
        !(kind == FusionKind::fold && kindOf(fused) == RecipeKind::row_fold))
      return false;  // an anchor may use the result's memory before it has read all operands
    if (!domainOf(op).sameShape(out->type))
      return false;
    std::vector<Access> access = operandAccess(op);
    for (unsigned i = 0; i < op.numOperands(); ++i)
      if (content.contains(op.operand(i)) && access[i] != Access::none && access[i] != Access::point &&
          access[i] != Access::inRow)
        return false;
  }
  return true;
}

std::optional<unsigned> inPlaceOperand(const Op &fused, unsigned result) {
  const auto entries = fact<&GroupFacts::inPlace>(fused);
  if (result >= entries.size() || entries[result] < 0 || entries[result] >= int64_t(fused.numOperands()) ||
      !mayShare(fused, result, unsigned(entries[result])))
    return std::nullopt;
  return unsigned(entries[result]);
}

}  // namespace gptc
