// pad-vocab: the vocabulary takes a multiple of `multiple` (default 128) places in memory: 50257 -> 50304. Rows of
// logits then start on cache lines, tiles of the classifier have no ragged edge, and any power of two of ranks can
// share it (Narayanan et al. 2021, section 5.6, pads for the last of these; nanoGPT for the first two).
//
// Only memory is padded. The type has both extents, `f32[50257->50304,768]`. Every op ranges over the logical one, so
// padded logits never take part in a softmax, and of padded rows nothing is written but zeros, by products of a GPU's
// library, which take them along (codegen/recipes/matmul/cublaslt.cpp). Padded rows of parameters, and of
// gradients and moments, which have the same type, are 0 from the start and stay 0. Checkpoints hold logical extents.
//
// Algorithm
//   1. The vocabulary is the extent V of the logits of a cross_entropy. Its states are the parameters from which those
//      logits come by a matmul (dimension 0 where the weight is transposed, else 1), vectors of ops on elements between
//      the two, such as a bias, and the tables of embedding ops with V rows.
//   2. That dimension of those states is padded.
//   3. The types of all results are inferred anew by the ops' own rules. A reshape keeps the padding of its last
//      dimension.
//   4. If the rule or the check of some op rejects the padded types (a dimension that it merges or cuts), the module
//      stays as it is.
// Runs on imported graphs, before autodiff, so that both directions agree. Modules with moments or gradients stay as
// they are, and those that learn labels, of which there are few.
#include "passes/pass.h"

#include "ir/facts.h"
#include "ir/opdef.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"

namespace gptc {

namespace {

using PaddedDims = llvm::MapVector<State *, unsigned>;  // state -> the dimension to pad

/// The parameter that defines `v`; null if `v` is no read of a parameter.
State *parameterOf(const Module &m, const Value *v) {
  if (!v->def || !v->def->is(OpKind::read))
    return nullptr;
  State *s = m.state(v->def->state);
  return s && kindOf(*s) == StateKind::param ? s : nullptr;
}

/// The operand from which `v` comes column by column, by a view or an op on elements; null if there is none. Adds the
/// vectors that such an op uses.
const Value *sameColumns(const Module &m, const Value *v, llvm::SmallVectorImpl<State *> &vectors) {
  const Op *op = v->def;
  if (!op || v->type.rank() < 2)
    return nullptr;
  if (op->is(OpKind::reshape))
    return op->operand(0)->type.dim(-1) == v->type.dim(-1) ? op->operand(0) : nullptr;
  if (op->def().tokens != Tokens::elements)
    return nullptr;
  const Value *from = nullptr;
  for (const Value *operand : op->operands()) {
    if (!operand->type.isScalar() && operand->type.rank() > 1) {
      if (from || !operand->type.sameShape(v->type))
        return nullptr;
      from = operand;
    } else if (State *s = parameterOf(m, operand); s && operand->type.rank() == 1) {
      vectors.push_back(s);
    }
  }
  return from;
}

/// Step 1.
PaddedDims vocabularyStates(const Module &m) {
  PaddedDims found;
  llvm::SmallVector<int64_t, 1> extents;
  for (const auto &f : m.functions)
    for (const Op &op : f->body) {
      if (!op.is(OpKind::cross_entropy))
        continue;
      const Value *logits = op.operand(0);
      llvm::SmallVector<State *, 2> vectors;
      while (const Value *before = sameColumns(m, logits, vectors))
        logits = before;
      const Op *product = logits->def;
      if (!product || !product->is(OpKind::matmul))
        continue;
      if (State *weight = parameterOf(m, product->operand(1)); weight && weight->type.rank() == 2) {
        found[weight] = product->attrs.getBool("tb") ? 0 : 1;
        extents.push_back(logits->type.dim(-1));
        for (State *s : vectors)
          found.try_emplace(s, 0);
      }
    }
  for (const auto &f : m.functions)
    for (const Op &op : f->body)
      if (op.is(OpKind::embedding))
        if (State *table = parameterOf(m, op.operand(0)); table && llvm::is_contained(extents, table->type.dim(0)))
          found.try_emplace(table, 0);
  return found;
}

/// Step 3. Returns false if an op rejects its new types; the module is then half changed.
bool retype(Module &m) {
  for (auto &f : m.functions)
    for (Op &op : f->body) {
      if (op.is(OpKind::read)) {
        op.result()->type = m.state(op.state)->type;
      } else if (op.is(OpKind::reshape)) {
        const Dim &from = op.operand(0)->type.dims.back();
        Dim &to = op.result()->type.dims.back();
        if (from.logical != from.padded && to.logical == from.logical)
          to = from;
      } else if (op.def().infer) {
        std::vector<Type> types;
        std::string error;
        if (!op.def().infer(op, types, error))
          return false;
        for (unsigned i = 0; i < op.numResults(); ++i)
          op.result(i)->type = types[i];
      }
      if (op.def().check && !op.def().check(op).empty())
        return false;
      if (op.is(OpKind::write) && op.operand(0)->type != m.state(op.state)->type)
        return false;
    }
  return true;
}

}  // namespace

bool padVocab(Module &m, const PassOptions &options) {
  const int64_t multiple = std::max<int64_t>(1, options.values.getInt("multiple", 128));
  if (fact<&ModelFacts::labels>(m))
    return false;
  for (const auto &s : m.states)
    if (const auto kind = kindOf(*s); kind == StateKind::moment || kind == StateKind::grad)
      return false;
  std::unique_ptr<Module> padded = m.clone();
  bool changed = false;
  for (auto [state, dim] : vocabularyStates(*padded)) {
    Dim &d = state->type.dims[dim];
    const int64_t extent = (d.logical + multiple - 1) / multiple * multiple;
    changed |= extent > d.padded;
    d.padded = std::max(d.padded, extent);
  }
  if (!changed || !retype(*padded))
    return false;
  m.take(std::move(padded));
  return true;
}

}  // namespace gptc
