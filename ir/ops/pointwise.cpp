// Arithmetic and activations, element by element.
#include "ir/ops/op_support.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gptc {
using namespace ops;
using kir::BinaryOp;
using kir::Expr;
using kir::UnaryOp;

namespace {

// ---- binary ---------------------------------------------------------------------------------------------------------

bool inferBinary(const Op &op, std::vector<Type> &types, std::string &error) {
  const Type &a = op.operand(0)->type, &b = op.operand(1)->type;
  if (a.dtype == DType::pred || a.dtype == DType::f8e4m3 || (op.is(OpKind::div) && isInt(a.dtype)))
    return fail(error, "{} is not defined for {}", op.name().str(), a.str());
  Type y;
  if (!broadcastTypes(a, b, y, error))
    return false;
  types = {y};
  return true;
}

/// Integer results wrap. Integers of a Tensor are exact and far from the limits of int64, so that the conversion is
/// safe.
double applyInteger(OpKind kind, DType t, double a, double b) {
  uint64_t x = uint64_t(int64_t(a)), y = uint64_t(int64_t(b));
  uint64_t r = kind == OpKind::add ? x + y : kind == OpKind::sub ? x - y : x * y;
  return t == DType::i32 ? double(int32_t(r)) : t == DType::u32 ? double(uint32_t(r)) : double(int64_t(r));
}

double applyBinary(OpKind kind, DType t, double a, double b) {
  if (isInt(t))
    return applyInteger(kind, t, a, b);
  switch (kind) {
  case OpKind::add:
    return a + b;
  case OpKind::sub:
    return a - b;
  case OpKind::mul:
    return a * b;
  default:
    return a / b;
  }
}

std::vector<Tensor> referenceBinary(const Op &op, std::span<const Tensor *const> in) {
  Tensor y(op.result()->type);
  for (size_t i = 0; i < y.data.size(); ++i)
    y.data[i] = applyBinary(op.kind, y.type.dtype, at(*in[0], int64_t(i)), at(*in[1], int64_t(i)));
  return {std::move(y)};
}

std::vector<Value *> gradBinary(GradCtx &c) {
  Value *a = c.op.operand(0), *b = c.op.operand(1), *dy = c.dresults[0];
  if (!isFloat(a->type.dtype))
    return {nullptr, nullptr};
  Value *da = dy, *db = dy;
  switch (c.op.kind) {
  case OpKind::sub:
    db = c.b.value(OpKind::neg, {dy});
    break;
  case OpKind::mul:
    da = c.b.value(OpKind::mul, {dy, b});
    db = c.b.value(OpKind::mul, {dy, a});
    break;
  case OpKind::div:  // d(a/b)/db = -(a/b)/b
    da = c.b.value(OpKind::div, {dy, b});
    db = c.b.value(OpKind::neg, {c.b.value(OpKind::mul, {da, c.op.result()})});
    break;
  default:
    break;
  }
  return {sumTo(c.b, da, a->type), sumTo(c.b, db, b->type)};
}

std::vector<OpDef::Sample> samplesBinary(OpKind kind, unsigned seed) {
  SampleSource source(seed);
  Type full(DType::f32, {source.extent(9), source.extent(9), source.maybePadded(source.extent(129))});
  Type last = full.slice(2, 3), suffix = full.slice(1, 3), scalar = Type::scalar(DType::f32);
  std::vector<OpDef::Sample> samples;
  auto add = [&](const Type &a, const Type &b) {
    OpDef::Sample s{.operandTypes = {a, b}};
    if (kind == OpKind::div)  // away from the pole
      s.operandValues = {source.normals(a), source.uniforms(b, 0.5, 2.0)};
    samples.push_back(std::move(s));
  };
  add(full, full), add(full, last), add(suffix, full), add(full, scalar), add(scalar, last), add(scalar, scalar);
  if (kind == OpKind::div)
    return samples;
  auto integers = [&](const Type &t, int64_t bound) {
    samples.push_back({.operandTypes = {t, t},
                       .operandValues = {source.integers(t, -bound, bound), source.integers(t, -bound, bound)}});
  };
  integers(full.withDType(DType::i32), 90000);  // products wrap
  integers(last.withDType(DType::i64), 1 << 20);
  return samples;
}

OpDef binaryOp(OpKind kind, const char *name, const char *summary, BinaryOp bop) {
  return {
      .kind = kind,
      .name = name,
      .summary = summary,
      .shapes = "a, b, one of which may have a suffix of the other's shape -> y",
      .operands = {{"a"}, {"b"}},
      .attrs = {},
      .results = {"y"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = Tokens::elements,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = inferBinary,
      .check = NotApplicable{"types say all"},
      .grad = gradBinary,
      .cost = [](const Op &op) { return streamCost(op, 1); },
      .reference = referenceBinary,
      .lower = [bop](LowerCtx &c) -> std::vector<Expr> { return {kir::binary(bop, c.operand(0), c.operand(1))}; },
      .samples = [kind](unsigned seed) { return samplesBinary(kind, seed); },
  };
}

// ---- unary ----------------------------------------------------------------------------------------------------------

bool inferUnary(const Op &op, std::vector<Type> &types, std::string &error) {
  const Type &x = op.operand(0)->type;
  if (!isArithmetic(x.dtype) && !(op.is(OpKind::neg) && isInt(x.dtype) && x.dtype != DType::pred))
    return fail(error, "{} is not defined for {}", op.name().str(), x.str());
  types = {x};
  return true;
}

struct UnarySpec {
  OpKind kind;
  const char *name;
  const char *summary;
  double flops;
  double (*reference)(double x);
  Expr (*lower)(LowerCtx &c, Expr x);
  Value *(*grad)(GradCtx &c, Value *x, Value *y, Value *dy);
  double lo = -3.0, hi = 3.0;  // range of samples
};

OpDef unaryOp(UnarySpec spec) {
  return {
      .kind = spec.kind,
      .name = spec.name,
      .summary = spec.summary,
      .shapes = "x -> y, of the type of x",
      .operands = {{"x"}},
      .attrs = {},
      .results = {"y"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = Tokens::elements,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer = inferUnary,
      .check = NotApplicable{"types say all"},
      .grad = [spec](GradCtx &c) -> std::vector<Value *> {
        if (!isFloat(c.op.operand(0)->type.dtype))
          return {nullptr};
        return {spec.grad(c, c.op.operand(0), c.op.result(), c.dresults[0])};
      },
      .cost = [spec](const Op &op) { return streamCost(op, spec.flops); },
      .reference = [spec](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor y(op.result()->type);
        for (size_t i = 0; i < y.data.size(); ++i)
          y.data[i] = convert(spec.reference(in[0]->data[i]), y.type.dtype);
        return {std::move(y)};
      },
      .lower = [spec](LowerCtx &c) -> std::vector<Expr> { return {spec.lower(c, c.operand(0))}; },
      .samples = [spec](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        Type t(DType::f32, {s.extent(9), s.maybePadded(s.extent(129))});
        Type scalar = Type::scalar(DType::f32);
        return {{.operandTypes = {t}, .operandValues = {s.uniforms(t, spec.lo, spec.hi)}},
                {.operandTypes = {scalar}, .operandValues = {s.uniforms(scalar, spec.lo, spec.hi)}}};
      },
  };
}

/// dx of an activation: dy * f'(x), a separate op, so that one expression computes it.
struct ActivationGradSpec {
  OpKind kind;
  const char *name;
  const char *summary;
  double flops;
  double (*reference)(double dy, double x);
  Expr (*lower)(LowerCtx &c, Expr dy, Expr x);
};

OpDef activationGradOp(ActivationGradSpec spec) {
  return {
      .kind = spec.kind,
      .name = spec.name,
      .summary = spec.summary,
      .shapes = "dy, x -> dx, all of one type",
      .operands = {{"dy"}, {"x"}},
      .attrs = {},
      .results = {"dx"},
      .fusion = FusionKind::pointwise,
      .autocast = AutocastClass::high,
      .tokens = Tokens::elements,
      .tokenSum = noTokenSum,
      .indices = noIndices,
      .infer =
          [](const Op &op, std::vector<Type> &types, std::string &error) {
            if (!expectFloat(op, 1, error) || !expectSame(op.operand(0)->type, op.operand(1)->type, "dy and x", error))
              return false;
            types = {op.operand(1)->type};
            return true;
          },
      .check = NotApplicable{"types say all"},
      .grad = NotApplicable{"a gradient itself; second derivatives are not taken"},
      .cost = [spec](const Op &op) { return streamCost(op, spec.flops); },
      .reference = [spec](const Op &op, std::span<const Tensor *const> in) -> std::vector<Tensor> {
        Tensor dx(op.result()->type);
        for (size_t i = 0; i < dx.data.size(); ++i)
          dx.data[i] = spec.reference(in[0]->data[i], in[1]->data[i]);
        return {std::move(dx)};
      },
      .lower = [spec](LowerCtx &c) -> std::vector<Expr> { return {spec.lower(c, c.operand(0), c.operand(1))}; },
      .samples = [](unsigned seed) -> std::vector<OpDef::Sample> {
        SampleSource s(seed);
        Type t(DType::f32, {s.extent(9), s.maybePadded(s.extent(129))});
        return {{.operandTypes = {t, t}}};
      },
  };
}

// gelu(x) = x/2 (1 + tanh u) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3): one exp and one division.
constexpr double geluCubic = 0.044715;
const double geluScale = std::sqrt(2.0 / std::numbers::pi);

double geluReference(double x) { return 0.5 * x * (1.0 + std::tanh(geluScale * (x + geluCubic * x * x * x))); }

double geluDerivative(double x) {
  double t = std::tanh(geluScale * (x + geluCubic * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * geluScale * (1.0 + 3.0 * geluCubic * x * x);
}

/// exp(-2u)
Expr geluExp(LowerCtx &c, const Expr &x, const Expr &xx) {
  return kir::unary(UnaryOp::exp, x * kir::fma(xx, c.f(-2.0 * geluScale * geluCubic), c.f(-2.0 * geluScale)));
}

/// The normal distribution function.
double normalBelow(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

/// From here on exp(-x^2/2) is 0 even in f64. x is clamped to it, so that infinities give the right limits.
constexpr double normalEnd = 64;

/// 1 minus normalBelow at a = |x|, as exp(-a^2/2) t R(t) with t = 1/(1 + a/4). R is the Chebyshev approximation of 18
/// terms on 0 <= t <= 1, absolute error 6e-14: enough also for f64, which only tests use. With one exponential and one
/// division this costs half as much as rational forms by intervals.
struct NormalTail {
  Expr x, tail, exp;  // x clamped to normalEnd, the tail, exp(-x^2/2)
};
NormalTail normalAbove(LowerCtx &c, Expr x) {
  static constexpr double coefficients[] = {0x1.9884533d43a20p-4,   0x1.9884533caa6b4p-4,  0x1.7efc0e46e17c0p-4,
                                            0x1.4beb7a446498cp-4,   0x1.041cf6b54a46cp-4,  0x1.62337a1ef30afp-5,
                                            0x1.8016ef63c43dap-6,   0x1.d0940bb606911p-8,  -0x1.d888ed822dd71p-9,
                                            -0x1.c5d94fc3b06d9p-11, -0x1.fcb01fe5b89bcp-6, 0x1.2d9a69befafffp-4,
                                            -0x1.21a79c6d6a57dp-3,  0x1.8d3c5d6675f30p-3,  -0x1.524e109b55451p-3,
                                            0x1.58f16d38c4f6ep-4,   -0x1.87378b11aee51p-6, 0x1.7f59b6ffb74c9p-9};
  x = kir::max(c.f(-normalEnd), kir::min(c.f(normalEnd), x));
  Expr a = kir::unary(UnaryOp::abs, x), t = c.f(1) / kir::fma(a, c.f(0.25), c.f(1)), r;
  for (auto it = std::rbegin(coefficients); it != std::rend(coefficients); ++it)
    r = r ? kir::fma(r, t, c.f(*it)) : c.f(*it);
  Expr e = kir::unary(UnaryOp::exp, a * a * c.f(-0.5));
  return {x, t * r * e, e};
}

Expr sigmoid(LowerCtx &c, const Expr &x) { return c.f(1) / (c.f(1) + kir::unary(UnaryOp::exp, -x)); }

double sigmoidOf(double x) { return 1.0 / (1.0 + std::exp(-x)); }

Value *one(GradCtx &c) { return c.b.constant(1.0, Type::scalar(c.dresults[0]->type.dtype)); }

}  // namespace

OpDef define_add() { return binaryOp(OpKind::add, "add", "a + b", BinaryOp::add); }
OpDef define_sub() { return binaryOp(OpKind::sub, "sub", "a - b", BinaryOp::sub); }
OpDef define_mul() { return binaryOp(OpKind::mul, "mul", "a * b", BinaryOp::mul); }
OpDef define_div() { return binaryOp(OpKind::div, "div", "a / b, of floats", BinaryOp::div); }

OpDef define_neg() {
  return unaryOp({.kind = OpKind::neg,
                  .name = "neg",
                  .summary = "-x",
                  .flops = 1,
                  .reference = [](double x) { return -x; },
                  .lower = [](LowerCtx &, Expr x) { return -x; },
                  .grad = [](GradCtx &c, Value *, Value *, Value *dy) { return c.b.value(OpKind::neg, {dy}); }});
}

OpDef define_exp() {
  return unaryOp({.kind = OpKind::exp,
                  .name = "exp",
                  .summary = "e to the power of x",
                  .flops = 10,
                  .reference = [](double x) { return std::exp(x); },
                  .lower = [](LowerCtx &, Expr x) { return kir::unary(UnaryOp::exp, x); },
                  .grad = [](GradCtx &c, Value *, Value *y, Value *dy) { return c.b.value(OpKind::mul, {dy, y}); }});
}

OpDef define_log() {
  return unaryOp({.kind = OpKind::log,
                  .name = "log",
                  .summary = "natural logarithm",
                  .flops = 10,
                  .reference = [](double x) { return std::log(x); },
                  .lower = [](LowerCtx &, Expr x) { return kir::unary(UnaryOp::log, x); },
                  .grad = [](GradCtx &c, Value *x, Value *, Value *dy) { return c.b.value(OpKind::div, {dy, x}); },
                  .lo = 0.1,
                  .hi = 5.0});
}

OpDef define_tanh() {
  return unaryOp({.kind = OpKind::tanh,
                  .name = "tanh",
                  .summary = "hyperbolic tangent",
                  .flops = 12,
                  .reference = [](double x) { return std::tanh(x); },
                  .lower = [](LowerCtx &, Expr x) { return kir::unary(UnaryOp::tanh, x); },
                  .grad =
                      [](GradCtx &c, Value *, Value *y, Value *dy) {
                        Value *yy = c.b.value(OpKind::mul, {y, y});
                        return c.b.value(OpKind::mul, {dy, c.b.value(OpKind::sub, {one(c), yy})});
                      }});
}

OpDef define_sqrt() {
  return unaryOp({.kind = OpKind::sqrt,
                  .name = "sqrt",
                  .summary = "square root",
                  .flops = 4,
                  .reference = [](double x) { return std::sqrt(x); },
                  .lower = [](LowerCtx &, Expr x) { return kir::unary(UnaryOp::sqrt, x); },
                  .grad = [](GradCtx &c, Value *, Value *y,
                             Value *dy) { return c.b.value(OpKind::div, {dy, c.b.value(OpKind::add, {y, y})}); },
                  .lo = 0.1,
                  .hi = 5.0});
}

OpDef define_relu() {
  return unaryOp(
      {.kind = OpKind::relu,
       .name = "relu",
       .summary = "x where positive, else 0",
       .flops = 1,
       .reference = [](double x) { return x < 0 ? 0 : x; },  // NaN stays NaN
       .lower = [](LowerCtx &c, Expr x) { return kir::max(c.f(0), x); },
       .grad = [](GradCtx &c, Value *x, Value *, Value *dy) { return c.b.value(OpKind::relu_grad, {dy, x}); }});
}

OpDef define_relu_grad() {
  return activationGradOp(
      {.kind = OpKind::relu_grad,
       .name = "relu_grad",
       .summary = "dy where x is positive, else 0",
       .flops = 1,
       .reference = [](double dy, double x) { return x > 0 ? dy : 0.0; },  // also if dy is not finite
       .lower = [](LowerCtx &c, Expr dy, Expr x) { return kir::select(kir::lt(c.f(0), x), dy, c.f(0)); }});
}

OpDef define_relu2() {
  return unaryOp(
      {.kind = OpKind::relu2,
       .name = "relu2",
       .summary = "the square of x where positive, else 0 (So et al. 2021)",
       .flops = 2,
       .reference = [](double x) { return x < 0 ? 0 : x * x; },
       .lower =
           [](LowerCtx &c, Expr x) {
             Expr r = kir::max(c.f(0), x);
             return r * r;
           },
       .grad = [](GradCtx &c, Value *x, Value *, Value *dy) { return c.b.value(OpKind::relu2_grad, {dy, x}); }});
}

OpDef define_relu2_grad() {
  return activationGradOp({.kind = OpKind::relu2_grad,
                           .name = "relu2_grad",
                           .summary = "2 dy x where x is positive, else 0",
                           .flops = 3,
                           .reference = [](double dy, double x) { return dy * (2 * (x < 0 ? 0 : x)); },
                           .lower = [](LowerCtx &c, Expr dy, Expr x) { return dy * (c.f(2) * kir::max(c.f(0), x)); }});
}

OpDef define_gelu_tanh() {
  return unaryOp(
      {.kind = OpKind::gelu_tanh,
       .name = "gelu_tanh",
       .summary = "Gaussian error linear unit, tanh approximation (Hendrycks & Gimpel 2016)",
       .flops = 16,
       .reference = geluReference,
       .lower = [](LowerCtx &c, Expr x) { return x / (c.f(1) + geluExp(c, x, x * x)); },
       .grad = [](GradCtx &c, Value *x, Value *, Value *dy) { return c.b.value(OpKind::gelu_tanh_grad, {dy, x}); }});
}

OpDef define_gelu_tanh_grad() {
  // With s = sigmoid(2u): d(x s)/dx = s + x s (1-s) 2u'.
  return activationGradOp({.kind = OpKind::gelu_tanh_grad,
                           .name = "gelu_tanh_grad",
                           .summary = "dy times the derivative of gelu_tanh at x",
                           .flops = 24,
                           .reference = [](double dy, double x) { return dy * geluDerivative(x); },
                           .lower =
                               [](LowerCtx &c, Expr dy, Expr x) {
                                 Expr xx = x * x;
                                 Expr s = c.f(1) / (c.f(1) + geluExp(c, x, xx));
                                 Expr slope = kir::fma(xx, c.f(6.0 * geluScale * geluCubic), c.f(2.0 * geluScale));
                                 return dy * kir::fma(x * slope, s * (c.f(1) - s), s);
                               }});
}

OpDef define_gelu_exact() {
  return unaryOp(
      {.kind = OpKind::gelu_exact,
       .name = "gelu_exact",
       .summary = "Gaussian error linear unit, exact: x times the normal distribution function of x",
       .flops = 36,
       .reference = [](double x) { return x < -normalEnd ? -0.0 : x * normalBelow(x); },
       .lower =
           [](LowerCtx &c, Expr x) {
             // x - x Q(x) if x > 0, else x Q(-x); Q is the tail.
             NormalTail n = normalAbove(c, x);
             return kir::fma(-kir::unary(UnaryOp::abs, n.x), n.tail, kir::max(c.f(0), x));
           },
       .grad = [](GradCtx &c, Value *x, Value *, Value *dy) { return c.b.value(OpKind::gelu_exact_grad, {dy, x}); }});
}

OpDef define_gelu_exact_grad() {
  return activationGradOp({.kind = OpKind::gelu_exact_grad,
                           .name = "gelu_exact_grad",
                           .summary = "dy times the derivative of gelu_exact at x",
                           .flops = 40,
                           .reference =
                               [](double dy, double x) {
                                 x = std::clamp(x, -normalEnd, normalEnd);
                                 return dy *
                                        (normalBelow(x) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi));
                               },
                           .lower =
                               [](LowerCtx &c, Expr dy, Expr x) {
                                 NormalTail n = normalAbove(c, x);
                                 Expr below = kir::select(kir::lt(x, c.f(0)), n.tail, c.f(1) - n.tail);
                                 return dy * kir::fma(n.x * n.exp, c.f(1 / std::sqrt(2 * std::numbers::pi)), below);
                               }});
}

OpDef define_silu() {
  return unaryOp(
      {.kind = OpKind::silu,
       .name = "silu",
       .summary = "x sigmoid(x)",
       .flops = 12,
       .reference = [](double x) { return x * sigmoidOf(x); },
       .lower = [](LowerCtx &c, Expr x) { return x / (c.f(1) + kir::unary(UnaryOp::exp, -x)); },
       .grad = [](GradCtx &c, Value *x, Value *, Value *dy) { return c.b.value(OpKind::silu_grad, {dy, x}); }});
}

OpDef define_silu_grad() {
  return activationGradOp({.kind = OpKind::silu_grad,
                           .name = "silu_grad",
                           .summary = "dy times the derivative of silu at x",
                           .flops = 16,
                           .reference =
                               [](double dy, double x) {
                                 double s = sigmoidOf(x);
                                 return dy * (s + x * s * (1.0 - s));
                               },
                           .lower =
                               [](LowerCtx &c, Expr dy, Expr x) {
                                 Expr s = sigmoid(c, x);
                                 return dy * kir::fma(x * s, c.f(1) - s, s);
                               }});
}

}  // namespace gptc
