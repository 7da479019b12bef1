// Matches a group with a call of cuBLASLt.
//
// 1. The matmul itself is read as the recipe reads it (matmul::Problem).
// 2. The other ops of the group are walked in order. Each must be the next step from the sum to the result, or a cast.
// 3. Every value that the group yields must be D or the operand of gelu, perhaps cast, or the bias gradient.
// 4. Padding that is 0 is taken as part of the product.
#include "codegen/cublaslt_matmul.h"

#include "codegen/recipes/matmul/matmul.h"
#include "codegen/recipes/pointwise.h"
#include "ir/facts.h"

namespace gptc {

namespace {

using Epilogue = CublasLtMatmul::Epilogue;

/// Whether a GPU finds zeros past the logical extents of `v`: of states, where they stay (passes/pad_vocab.cpp), behind
/// the rows that the row recipe stores, and below those of f8e4m3 that the pointwise recipe stores.
bool paddingIsZero(const Value &v) {
  if (v.type.paddedElements() == v.type.elements())
    return true;
  if (!v.def)
    return false;
  if (v.def->is(OpKind::read))
    return true;
  if (v.def->is(OpKind::fused) && kindOf(*v.def) == RecipeKind::pointwise && !runsOnHost(*v.def))
    return zeroesRowsBelow(v.type);
  const Dim last = v.type.dims.back();
  const bool onlyLast = v.type.paddedElements() * last.logical == v.type.elements() * last.padded;
  return onlyLast && v.def->is(OpKind::fused) && kindOf(*v.def) == RecipeKind::row && !runsOnHost(*v.def) &&
         groupDomain(*v.def).sameShape(v.type);
}

class Matcher {
public:
  explicit Matcher(const Op &fused) : fused(fused) {}

  std::optional<CublasLtMatmul> run() {
    if (kindOf(fused) != RecipeKind::matmul || !matmul::Problem::read(fused, p).empty())
      return std::nullopt;
    if (p.stored == DType::f64 || p.panels || (eights() && !takesEights()))
      return std::nullopt;
    sum = p.anchor->result();
    for (const Op &op : *fused.body)
      if (&op != p.anchor && &op != p.columnSum && !op.is(OpKind::yield) && !step(op))
        return std::nullopt;
    if (!outputs())
      return std::nullopt;
    takePadding();
    if (eights() && (p.n % 16 || p.k % 16))
      return std::nullopt;
    call();
    return c;
  }

private:
  const Op &fused;
  matmul::Problem p;
  CublasLtMatmul c;
  const Value *sum = nullptr;   // the last value of the chain so far
  const Value *kept = nullptr;  // the operand of gelu, before a cast
  int residual = -1;
  DType out = DType::f32;

  bool eights() const { return p.stored == DType::f8e4m3; }
  bool takesEights() const { return p.tb && !p.ta && p.batch == 1 && p.init < 0 && !p.columnSum; }
  /// The type of the bias.
  DType biasType() const { return eights() ? DType::bf16 : out; }

  /// The operand of the cast that gives `v`, or `v` itself.
  static const Value *uncast(const Value *v) { return v->def && v->def->is(OpKind::cast) ? v->def->operand(0) : v; }
  /// The number of the group's operand that `v` is, or that a widening cast made it from; -1 for other values.
  int argument(const Value *v) const {
    if (v->type.dtype != sum->type.dtype)
      return -1;
    v = uncast(v);
    return v->def || sizeOf(v->type.dtype) > sizeOf(sum->type.dtype) ? -1 : int(v->index);
  }

  bool step(const Op &op) {
    if (op.is(OpKind::cast))  // checked at its use: of the sum, of gelu's operand, or of an operand of the group
      return true;
    if (op.is(OpKind::mul) && eights() && sum == p.anchor->result() && c.scale < 0) {
      const bool first = op.operand(0) == sum;
      const Value *factor = op.operand(first ? 1 : 0);
      c.scale = argument(factor);
      if ((!first && op.operand(1) != sum) || c.scale < 0 || !factor->type.isScalar() ||
          typeOf(c.scale).dtype != DType::f32)
        return false;
    } else if (op.is(OpKind::add)) {
      const bool first = op.operand(0) == sum;
      if (!first && op.operand(1) != sum)
        return false;
      const Value *other = op.operand(first ? 1 : 0);
      const int arg = argument(other);
      if (arg < 0 || c.epilogue >= Epilogue::gelu)
        return false;
      if (other->type.rank() == 1 && other->type.dims.back() == sum->type.dims.back() && c.bias < 0)
        c.bias = arg, c.epilogue = Epilogue::bias;
      else if (other->type.sameShape(sum->type) && residual < 0 && sum->type.rank() > 1)
        residual = arg;
      else
        return false;
    } else if (eights()) {
      return false;
    } else if (op.is(OpKind::gelu_tanh) && op.operand(0) == sum && c.epilogue <= Epilogue::bias && residual < 0) {
      kept = sum;
      c.epilogue = c.bias < 0 ? Epilogue::gelu : Epilogue::geluBias;
    } else if (op.is(OpKind::gelu_tanh_grad) && op.operand(0) == sum && c.epilogue == Epilogue::none && residual < 0) {
      c.aux = argument(op.operand(1));
      c.epilogue = Epilogue::geluGrad;
      if (c.aux < 0)
        return false;
    } else {
      return false;
    }
    sum = op.result();
    return true;
  }

  bool outputs() {
    const Op &yield = *fused.body->back();
    int d = -1;
    for (unsigned i = 0; i < yield.numOperands(); ++i) {
      const Value *v = yield.operand(i), *from = uncast(v);
      const int param = int(fused.numOperands() + i);
      if (p.columnSum && v == p.columnSum->result())
        c.bias = param;
      else if (from == sum && d < 0)
        d = param, out = v->type.dtype;
      else if (from == kept && c.aux < 0)
        c.aux = param, c.epilogue = c.epilogue == Epilogue::gelu ? Epilogue::geluAux : Epilogue::geluAuxBias;
      else
        return false;
    }
    if (d < 0 || (out != DType::f32 && out != (eights() ? DType::bf16 : p.stored)))
      return false;
    if (p.columnSum) {
      if (c.epilogue != Epilogue::none || p.columnSum->numOperands() > 1)
        return false;
      c.epilogue = Epilogue::biasGradA;
    }
    if (p.init >= 0 && residual >= 0)
      return false;
    c.d.param = unsigned(d);
    if (c.aux >= 0 && typeOf(d).padded(-1) % 8 != 0)  // CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD
      return false;
    auto isOut = [&](int param) { return param < 0 || typeOf(param).dtype == out; };
    return (c.bias < 0 || typeOf(c.bias).dtype == biasType()) && isOut(c.aux) && isOut(residual) && isOut(p.init) &&
           (p.batch == 1 || (c.epilogue == Epilogue::none && residual < 0 && p.init < 0));
  }

  const Type &typeOf(int param) const {
    return unsigned(param) < fused.numOperands() ? fused.operand(unsigned(param))->type
                                                 : fused.result(unsigned(param) - fused.numOperands())->type;
  }

  /// Extends the product over padding, where that changes no logical element and leaves zeros in the padding of the
  /// result. With 50257 columns the library takes kernels with accesses of 2 bytes, whatever the distance of the rows:
  /// on an H200, 104 TFLOP/s instead of 700.
  void takePadding() {
    const Value &a = *fused.operand(p.a), &b = *fused.operand(p.b);
    if (p.batchDims || !paddingIsZero(a) || !paddingIsZero(b))
      return;
    auto extent = [](const Type &t, bool last) {
      return last ? t.padded(-1) : t.rank() == 2 ? t.padded(0) : t.elements() / t.dim(-1);
    };
    if (const int64_t k = extent(a.type, !p.ta); k == extent(b.type, p.tb))
      p.k = k;
    const Type &y = typeOf(int(c.d.param));
    for (int param : {c.bias, residual, p.init}) {
      if (param < 0)
        continue;
      if (typeOf(param).padded(-1) != y.padded(-1) || (param != c.bias && !typeOf(param).sameShape(y)) ||
          (unsigned(param) < fused.numOperands() && !paddingIsZero(*fused.operand(unsigned(param)))))
        return;
    }
    if (c.aux >= 0)
      return;
    if (const int64_t m = extent(a.type, p.ta); m == extent(y, false))
      p.m = m;
    if (const int64_t n = extent(b.type, !p.tb); n == extent(y, true))
      p.n = n;
  }

  void call() {
    c.m = p.n, c.n = p.m, c.k = p.k, c.batch = p.batch;
    c.tf32 = p.anchor->attrs.getBool("tf32");
    // A row-major k x n matrix b is column-major n x k. So A needs op() only if b is stored as n x k.
    c.a = {p.b, p.stored, p.tb, p.tb ? p.k : p.n, p.tb ? p.n : p.k, p.ldb, p.bBatch};
    c.b = {p.a, p.stored, p.ta, p.ta ? p.m : p.k, p.ta ? p.k : p.m, p.lda, p.aBatch};
    const Type &y = typeOf(int(c.d.param));
    c.d = {c.d.param, out, false, p.n, p.m, y.padded(-1), y.paddedElements() / p.batch};
    if (int from = residual >= 0 ? residual : p.init; from >= 0) {
      c.c = c.d;
      c.c->param = unsigned(from);
      c.c->ld = typeOf(from).padded(-1);
      c.c->batchStride = typeOf(from).paddedElements();
    }
  }
};

}  // namespace

std::optional<CublasLtMatmul> matchCublasLtMatmul(const Op &fused) { return Matcher(fused).run(); }

}  // namespace gptc
