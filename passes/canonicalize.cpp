// Replaces ops by simpler ones that give the same bits. One function per op kind is tried on every op, in order, until
// a sweep changes nothing. The ops before an op are already simple, so there are usually two sweeps.
//
//   1. Constant folding of add, sub, mul, div, neg, sqrt, cast in f32, f64 and integers. These ops round correctly, so
//      kernels give the same bits. exp, log and tanh are polynomials in kernels and stay. A reshape, transpose, slice
//      or broadcast of a constant is a constant.
//   2. Identities that are exact in IEEE arithmetic: x + -0, x - 0, x * 1, x / 1 are x (but x + 0 is not: -0 + 0 =
//      0); x * -1 is -x; x / 2^k is x * 2^-k; x + -y is x - y; x - -y is x + y; --x is x. For integers x + 0, x - 0,
//      x * 1 are x, x * 0 is 0.
//   3. Views of views: reshape of reshape, transpose of transpose, slice of slice, broadcast of broadcast. Views that
//      change nothing are removed. A transpose that only moves dimensions of extent 1 becomes a reshape.
//   4. cast to the same dtype; cast to a wider dtype and back.
//   5. An operand that is broadcast to the shape of the other operand: arithmetic ops broadcast implicitly.
//   6. matmul of a matrix transposed in its last two dimensions: flips ta or tb.
//   7. dropout with p = 0; relu of relu; spread outside of @forward, as only autodiff needs it.
#include "passes/pass.h"

#include "ir/opdef.h"
#include "support/diagnostics.h"

#include <cmath>
#include <numeric>

namespace gptc {

namespace {

/// The value of a constant as kernels read it: rounded to f32 if that is its dtype.
std::optional<double> constantOf(const Value *v) {
  if (!v->def || !v->def->is(OpKind::constant))
    return std::nullopt;
  double c = v->def->attrs.getFloat("value");
  return v->type.dtype == DType::f32 ? double(float(c)) : c;
}

bool isInt(const Value *v) { return gptc::isInt(v->type.dtype); }

/// Whether `v` is the constant `c`. Of floats the sign of zero counts.
bool isExactly(const Value *v, double c) {
  auto x = constantOf(v);
  return x && *x == c && (isInt(v) || std::signbit(*x) == std::signbit(c));
}

bool foldable(DType t) { return t == DType::f32 || t == DType::f64 || t == DType::i32 || t == DType::i64; }

/// `r` rounded to dtype `t`; nullopt if it is no integer in the range of an integer `t`, or `t` is not foldable.
std::optional<double> rounded(double r, DType t) {
  switch (t) {
  case DType::f32:
    return double(float(r));
  case DType::f64:
    return r;
  case DType::i32:
    return std::fabs(r) < 0x1p31 && r == std::trunc(r) ? std::optional(r) : std::nullopt;
  case DType::i64:
    return std::fabs(r) < 0x1p53 && r == std::trunc(r) ? std::optional(r) : std::nullopt;
  default:
    return std::nullopt;
  }
}

class Canonicalizer {
public:
  bool run(Function &f) {
    differentiated = f.name != "forward";
    bool changed = false;
    for (int sweep = 0; sweep < 16; ++sweep) {
      changedNow = false;
      for (Op *op = f.body.front(), *next; op; op = next) {
        next = op->next();
        visit(*op);
      }
      if (!changedNow)
        break;
      changed = true;
    }
    return changed;
  }

private:
  bool changedNow = false, differentiated = false;

  void visit(Op &op) {
    if (op.numResults() != 1 || op.isOneOf(OpKind::read, OpKind::constant, OpKind::fused) || op.result()->unused())
      return;
    Value *by = foldConstants(op);
    if (!by)
      by = simplify(op);
    if (!by)
      return;
    GPTC_CHECK(by->type == op.result()->type, "'{}' {} became {}", op.name().str(), op.result()->type.str(),
               by->type.str());
    op.result()->replaceAllUsesWith(by);
    op.erase();
    changedNow = true;
  }

  Builder at(Op &op) {
    Builder b(*op.parent(), &op);
    b.loc = op.loc;
    b.layer = op.layer;
    return b;
  }
  Value *make(Op &op, OpKind kind, llvm::ArrayRef<Value *> operands, AttrMap attrs = {}) {
    return at(op).value(kind, operands, std::move(attrs));
  }
  Value *make(Op &op, OpKind kind, Value *operand) { return at(op).op(kind, {operand}, {op.result()->type})->result(); }
  /// Records a change within an op that is not replaced.
  void touch() { changedNow = true; }

  Value *foldConstants(Op &op) {
    const Type &t = op.result()->type;
    if (op.isOneOf(OpKind::reshape, OpKind::transpose, OpKind::slice, OpKind::broadcast)) {
      auto c = constantOf(op.operand(0));
      return c ? at(op).constant(*c, t) : nullptr;
    }
    bool binary = op.isOneOf(OpKind::add, OpKind::sub, OpKind::mul, OpKind::div);
    if (!binary && !op.isOneOf(OpKind::neg, OpKind::sqrt, OpKind::cast))
      return nullptr;
    auto a = constantOf(op.operand(0));
    auto b = binary ? constantOf(op.operand(1)) : a;
    if (!a || !b || !foldable(t.dtype) || !foldable(op.operand(0)->type.dtype))
      return nullptr;
    double r;
    switch (op.kind) {
    case OpKind::add:
      r = *a + *b;
      break;
    case OpKind::sub:
      r = *a - *b;
      break;
    case OpKind::mul:
      r = *a * *b;
      break;
    case OpKind::div:
      if (gptc::isInt(t.dtype))
        return nullptr;
      r = *a / *b;
      break;
    case OpKind::neg:
      r = -*a;
      break;
    case OpKind::sqrt:
      r = std::sqrt(*a);
      break;
    default:
      r = gptc::isInt(t.dtype) ? std::trunc(*a) : *a;
      break;
    }
    if (!std::isfinite(r))
      return nullptr;  // keeps the op that makes the inf or NaN, so that it stays visible
    auto folded = rounded(r, t.dtype);
    return folded ? at(op).constant(*folded, t) : nullptr;
  }

  Value *simplify(Op &op) {
    switch (op.kind) {
    case OpKind::add:
    case OpKind::sub:
    case OpKind::mul:
    case OpKind::div:
      return arithmetic(op);
    case OpKind::neg: {
      Op *inner = op.operand(0)->def;
      return inner && inner->is(OpKind::neg) ? inner->operand(0) : nullptr;
    }
    case OpKind::relu: {
      Op *inner = op.operand(0)->def;
      return inner && inner->is(OpKind::relu) ? op.operand(0) : nullptr;
    }
    case OpKind::spread:
      return differentiated ? op.operand(0) : nullptr;
    case OpKind::dropout:
      return op.attrs.getFloat("p") == 0 ? op.operand(0) : nullptr;
    case OpKind::cast:
      return cast(op);
    case OpKind::reshape:
    case OpKind::broadcast:
      return viewOfView(op);
    case OpKind::transpose:
      return transpose(op);
    case OpKind::slice:
      return slice(op);
    case OpKind::matmul:
      flipTransposed(op);
      return nullptr;
    default:
      return nullptr;
    }
  }

  Value *arithmetic(Op &op) {
    const Type &t = op.result()->type;
    bool commutes = op.isOneOf(OpKind::add, OpKind::mul);
    if (commutes && constantOf(op.operand(0)) && !constantOf(op.operand(1))) {
      Value *c = op.operand(0);
      op.setOperand(0, op.operand(1));
      op.setOperand(1, c);
      touch();
    }
    for (unsigned i = 0; i < 2; ++i) {
      Op *d = op.operand(i)->def;
      if (d && d->is(OpKind::broadcast) && op.operand(1 - i)->type.dims == t.dims) {
        op.setOperand(i, d->operand(0));
        touch();
      }
    }
    Value *a = op.operand(0), *b = op.operand(1);
    bool whole = a->type == t;  // b does not broadcast a
    Op *nb = b->def && b->def->is(OpKind::neg) ? b->def : nullptr;
    Op *na = a->def && a->def->is(OpKind::neg) ? a->def : nullptr;
    switch (op.kind) {
    case OpKind::add:
      if (whole && (isInt(b) ? isExactly(b, 0) : isExactly(b, -0.0)))
        return a;
      if (nb)
        return make(op, OpKind::sub, {a, nb->operand(0)});
      if (na)
        return make(op, OpKind::sub, {b, na->operand(0)});
      return nullptr;
    case OpKind::sub:
      if (whole && isExactly(b, 0))
        return a;
      return nb ? make(op, OpKind::add, {a, nb->operand(0)}) : nullptr;
    case OpKind::mul:
      if (whole && isExactly(b, 1))
        return a;
      if (whole && isExactly(b, -1) && !isInt(b))
        return make(op, OpKind::neg, a);
      return isInt(b) && isExactly(b, 0) ? at(op).constant(0, t) : nullptr;
    default: {
      if (whole && isExactly(b, 1))
        return a;
      auto c = constantOf(b);
      int exponent;
      if (!c || isInt(b) || (b->type.dtype != DType::f32 && b->type.dtype != DType::f64) ||
          std::frexp(std::fabs(*c), &exponent) != 0.5 || std::abs(exponent) > 100)
        return nullptr;
      return make(op, OpKind::mul, {a, at(op).constant(1 / *c, b->type)});
    }
    }
  }

  /// Whether `wide` represents every value of `narrow` exactly.
  static bool holds(DType wide, DType narrow) {
    switch (wide) {
    case DType::f64:
      return narrow == DType::f32 || isNarrow(narrow) || narrow == DType::i32;
    case DType::f32:
      return isNarrow(narrow);
    case DType::bf16:
    case DType::f16:
      return narrow == DType::f8e4m3;
    case DType::i64:
      return narrow == DType::i32 || narrow == DType::u32;
    default:
      return false;
    }
  }

  Value *cast(Op &op) {
    Value *x = op.operand(0);
    const Type &t = op.result()->type;
    if (x->type == t)
      return x;
    Op *inner = x->def;
    if (inner && inner->is(OpKind::cast) && inner->operand(0)->type == t && holds(x->type.dtype, t.dtype))
      return inner->operand(0);
    return nullptr;
  }

  Value *viewOfView(Op &op) {
    Value *x = op.operand(0);
    if (x->type == op.result()->type)
      return x;
    return x->def && x->def->kind == op.kind ? make(op, op.kind, x->def->operand(0)) : nullptr;
  }

  Value *transpose(Op &op) {
    Value *x = op.operand(0);
    std::vector<int64_t> perm = op.attrs.getInts("perm");
    if (Op *inner = x->def; inner && inner->is(OpKind::transpose)) {
      std::vector<int64_t> first = inner->attrs.getInts("perm");
      for (int64_t &p : perm)
        p = first[p];
      return make(op, OpKind::transpose, {inner->operand(0)}, attrs({{"perm", perm}}));
    }
    int64_t last = -1;
    bool sameOrder = true, moved = false;
    for (size_t i = 0; i < perm.size(); ++i) {
      moved |= perm[i] != int64_t(i);
      const Dim &d = x->type.dims[perm[i]];
      if (d.padded == 1)
        continue;
      sameOrder &= perm[i] > last && d.logical == d.padded;
      last = perm[i];
    }
    if (!moved)
      return x;
    return sameOrder && x->type.sharding.empty() ? make(op, OpKind::reshape, x) : nullptr;
  }

  Value *slice(Op &op) {
    Value *x = op.operand(0);
    if (x->type == op.result()->type)
      return x;
    Op *inner = x->def;
    if (!inner || !inner->is(OpKind::slice) || inner->attrs.getInt("dim") != op.attrs.getInt("dim"))
      return nullptr;
    AttrMap a = op.attrs;
    a.set("start", op.attrs.getInt("start") + inner->attrs.getInt("start"));
    return make(op, OpKind::slice, {inner->operand(0)}, a);
  }

  void flipTransposed(Op &op) {
    int64_t batch = op.attrs.getInt("batch");
    for (unsigned i = 0; i < 2; ++i) {
      Op *d = op.operand(i)->def;
      if (!d || !d->is(OpKind::transpose) || int64_t(op.operand(i)->type.rank()) != batch + 2)
        continue;
      std::vector<int64_t> swapped(batch + 2);
      std::iota(swapped.begin(), swapped.end(), 0);
      std::swap(swapped[batch], swapped[batch + 1]);
      if (d->attrs.getInts("perm") != swapped)
        continue;
      const char *flag = i ? "tb" : "ta";
      op.setOperand(i, d->operand(0));
      if (op.attrs.getBool(flag))
        op.attrs.erase(flag);
      else
        op.attrs.set(flag, true);
      touch();
    }
  }
};

}  // namespace

bool canonicalize(Module &m, const PassOptions &) {
  bool changed = false;
  for (auto &f : m.functions)
    changed |= Canonicalizer().run(*f);
  return changed;
}

}  // namespace gptc
