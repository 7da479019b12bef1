#include "ir/ops/op_support.h"

#include "llvm/ADT/STLExtras.h"

#include <array>
#include <bit>
#include <cmath>
#include <numbers>

namespace gptc::ops {

bool isSuffix(const Type &small, const Type &big) {
  return small.rank() <= big.rank() && llvm::equal(small.dims, llvm::ArrayRef<Dim>(big.dims).take_back(small.rank()));
}

bool broadcastTypes(const Type &a, const Type &b, Type &result, std::string &error) {
  if (a.dtype != b.dtype)
    return fail(error, "operands have different dtypes: {} and {}", a.str(), b.str());
  if (isSuffix(b, a))
    result = a;
  else if (isSuffix(a, b))
    result = b;
  else
    return fail(error, "neither shape is a suffix of the other: {} and {}", a.str(), b.str());
  return true;
}

bool expectSame(const Type &a, const Type &b, const char *what, std::string &error) {
  return (a.dtype == b.dtype && a.sameShape(b)) || fail(error, "{} differ: {} and {}", what, a.str(), b.str());
}

bool expectFloat(const Op &op, unsigned i, std::string &error) {
  const Type &t = op.operand(i)->type;
  return isArithmetic(t.dtype) || fail(error, "operand {} must be of a float type{}, not {}", i,
                                       isFloat(t.dtype) ? " to compute with" : "", t.str());
}

bool expectScalar(const Op &op, unsigned i, DType dtype, std::string &error) {
  const Type &t = op.operand(i)->type;
  return (t.isScalar() && t.dtype == dtype) ||
         fail(error, "operand {} must be {}[], not {}", i, nameOf(dtype).str(), t.str());
}

bool expectRank(const Op &op, unsigned i, unsigned atLeast, std::string &error) {
  const Type &t = op.operand(i)->type;
  return t.rank() >= atLeast || fail(error, "operand {} must have at least {} dimensions: {}", i, atLeast, t.str());
}

bool expectType(const Op &op, unsigned i, const Type &t, const char *what, std::string &error) {
  const Type &is = op.operand(i)->type;
  return (is.dtype == t.dtype && is.sameShape(t)) ||
         fail(error, "operand {} must have {}, {}, not {}", i, what, t.str(), is.str());
}

bool expectIndices(const Op &op, unsigned i, std::string &error) {
  const Type &t = op.operand(i)->type;
  return t.dtype == DType::i32 || t.dtype == DType::i64 ||
         fail(error, "operand {} must hold i32 or i64, not {}", i, t.str());
}

DType statDType(DType t) { return isNarrow(t) ? DType::f32 : t; }

Type rowsOf(const Type &t) { return t.slice(0, t.rank() ? t.rank() - 1 : 0); }

std::vector<int64_t> stridesOf(const Type &t) {
  std::vector<int64_t> strides(t.rank(), 1);
  for (int i = int(t.rank()) - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * t.dim(i + 1);
  return strides;
}

void forEachIndex(const Type &t, const std::function<void(llvm::ArrayRef<int64_t>, int64_t)> &f) {
  std::vector<int64_t> index(t.rank(), 0);
  int64_t n = t.elements();
  for (int64_t position = 0; position < n; ++position) {
    f(index, position);
    for (int d = int(t.rank()) - 1; d >= 0; --d) {
      if (++index[d] < t.dim(d))
        break;
      index[d] = 0;
    }
  }
}

double convert(double v, DType t) {
  auto wrap = [](double x, double period, double low) {
    double r = std::fmod(std::trunc(x) - low, period);
    return (r < 0 ? r + period : r) + low;
  };
  switch (t) {
  case DType::f32:
  case DType::f64:
  case DType::bf16:
  case DType::f16:
  case DType::f8e4m3:
    return v;
  case DType::i32:
    return wrap(v, 0x1p32, -0x1p31);
  case DType::u32:
    return wrap(v, 0x1p32, 0);
  case DType::i64:
    return std::trunc(v);
  case DType::pred:
    return v != 0;
  }
  return v;
}

Cost streamCost(const Op &op, double flopsPerElement) {
  Cost c;
  int64_t largest = 1;
  for (Value *v : op.operands()) {
    c.bytesRead += double(v->type.bytes());
    largest = std::max(largest, v->type.elements());
  }
  for (unsigned i = 0; i < op.numResults(); ++i) {
    c.bytesWritten += double(op.result(i)->type.bytes());
    largest = std::max(largest, op.result(i)->type.elements());
  }
  c.flops = flopsPerElement * double(largest);
  return c;
}

Value *sumTo(Builder &b, Value *g, const Type &like) {
  GPTC_CHECK(isSuffix(like, g->type), "gradient {} of a value {}", g->type.str(), like.str());
  if (g->type.rank() == like.rank())
    return g;
  AttrMap at = attrs({{"lead", int64_t(g->type.rank() - like.rank())}});
  if (like.rank() > 1)
    at.set("fold", int64_t(1));
  return b.value(OpKind::reduce_sum, {g}, std::move(at));
}

void expectNoGradient(const GradCtx &c, unsigned i) {
  if (c.dresults[i])
    throw UserError(ErrorCode::GirInvalid,
                    fmt::format("result {} of '{}'{} has no gradient, but the loss depends on it", i, c.op.name().str(),
                                c.op.loc.empty() ? "" : " (" + c.op.loc + ")"));
}

// ---- dropout --------------------------------------------------------------------------------------------------------

std::string checkDropoutAttrs(const Op &op) {
  double p = op.attrs.getFloat("p");
  if (!(p >= 0 && p < 1))
    return fmt::format("p = {} must be at least 0 and below 1", p);
  int64_t stream = op.attrs.getInt("stream");
  if (stream < 0 || stream > int64_t(UINT32_MAX))
    return fmt::format("stream = {} must be between 0 and {}", stream, UINT32_MAX);
  return "";
}

RandomKey dropoutKey(const Op &op, const Tensor &seed, const Tensor &step, const Tensor &seq0, int64_t s) {
  auto word = [](const Tensor &t) { return uint64_t(int64_t(t.data[0])); };
  return randomKey(word(seed), word(step), uint32_t(op.attrs.getInt("stream")), word(seq0) + uint64_t(s));
}

kir::Expr dropoutKeeps(kir::Expr bits, double p) {
  // The upper 24 bits times 2^-24 are compared as integers.
  int64_t bound = int64_t(std::ceil(p * 0x1p24));
  kir::Expr upper = kir::binary(kir::BinaryOp::shr, std::move(bits), kir::imm(8, DType::u32));
  return kir::binary(kir::BinaryOp::ge, std::move(upper), kir::imm(bound, DType::u32));
}

// ---- ALiBi ----------------------------------------------------------------------------------------------------------

double alibiSlope(int64_t head, int64_t heads) {
  const int64_t m = int64_t(std::bit_floor(uint64_t(heads)));
  return head < m ? std::exp2(-8.0 * double(head + 1) / double(m))
                  : std::exp2(-4.0 * double(2 * (head - m) + 1) / double(m));
}

kir::Expr alibiSlope(const kir::Expr &head, int64_t heads, DType compute) {
  const int64_t m = int64_t(std::bit_floor(uint64_t(heads)));
  // In f64, so that powers of two are exact.
  auto slope = [&](kir::Expr n, double each) {
    kir::Expr exponent = kir::cast(DType::f64, std::move(n)) * kir::fimm(-each * std::numbers::ln2, DType::f64);
    return kir::cast(compute, kir::unary(kir::UnaryOp::exp, exponent));
  };
  kir::Expr first = slope(head + 1, 8.0 / double(m));
  if (m == heads)
    return first;
  kir::Expr beyond = slope((head + -m) * 2 + 1, 4.0 / double(m));
  return kir::select(kir::lt(head, kir::imm(m)), first, beyond);
}

// ---- samples --------------------------------------------------------------------------------------------------------

uint64_t SampleSource::bits() {
  // SplitMix64, Steele et al. 2014.
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int64_t SampleSource::between(int64_t lo, int64_t hi) { return lo + int64_t(bits() % uint64_t(hi - lo + 1)); }

int64_t SampleSource::extent(int64_t limit) {
  static constexpr std::array<int64_t, 20> liked = {1,  2,  3,  4,  5,  7,  8,  9,   13,  15,
                                                    16, 17, 31, 32, 33, 64, 65, 127, 128, 129};
  size_t n = 0;
  while (n < liked.size() && liked[n] <= limit)
    ++n;
  return liked[bits() % n];
}

double SampleSource::uniform(double lo, double hi) { return lo + (hi - lo) * (double(bits() >> 11) * 0x1p-53); }

double SampleSource::normal() {
  double u = 1 - uniform(0, 1);
  return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * uniform(0, 1));
}

Tensor SampleSource::normals(Type t) {
  Tensor r(std::move(t));
  for (double &x : r.data)
    x = normal();
  return r;
}

Tensor SampleSource::uniforms(Type t, double lo, double hi) {
  Tensor r(std::move(t));
  for (double &x : r.data)
    x = uniform(lo, hi);
  return r;
}

Dim SampleSource::maybePadded(int64_t n) { return Dim(n, bits() % 2 ? n : n + between(1, 9)); }

Tensor SampleSource::integers(Type t, int64_t lo, int64_t hi) {
  Tensor r(std::move(t));
  for (double &x : r.data)
    x = double(between(lo, hi));
  return r;
}

}  // namespace gptc::ops
