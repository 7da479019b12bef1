// The method of all functions: exact range reduction, a minimax polynomial (Remez, weighted for relative error), exact
// reconstruction by exponent bits. The degrees keep the approximation error below 2^-30, except for exp2. Muller,
// "Elementary Functions", 2016.
#include "codegen/math.h"

#include "support/diagnostics.h"

#include <array>
#include <limits>

namespace gptc {

using namespace kir;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

Expr u(uint32_t v) { return imm(v, DType::u32); }
Expr bits(const Expr &x) { return bitcast(DType::u32, x); }
Expr fromBits(const Expr &x) { return bitcast(DType::f32, x); }
Expr shl(const Expr &x, int n) { return binary(BinaryOp::shl, x, u(n)); }
Expr shr(const Expr &x, int n) { return binary(BinaryOp::shr, x, u(n)); }
Expr compare(BinaryOp op, const Expr &x, const Expr &y) { return binary(op, x, y); }

/// c[0] + c[1] x + ..., by Horner's rule.
Expr polynomial(const Expr &x, std::initializer_list<double> c) {
  Expr r;
  for (auto it = std::rbegin(c); it != std::rend(c); ++it)
    r = r ? fma(r, x, fimm(*it, x->dtype)) : fimm(*it, x->dtype);
  return r;
}

/// x = n ln 2 + r with |r| <= ln 2 / 2 and |n| < 2^22. `nBits` is the integer n + 0x4b400000; `expm1` is e^r - 1.
struct ExpReduced {
  Expr n, nBits, r, expm1;
};
ExpReduced reduceExp(const Expr &x) {
  // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
  Expr shifted = fma(x, fimm(0x1.715476p+0), fimm(0x1.8p23));
  Expr n = shifted - fimm(0x1.8p23);
  Expr r = fma(n, fimm(-0x1.62e43p-1), x);  // exact, as |n| < 2^8
  r = fma(n, fimm(0x1.05c61p-29), r);       // what ln 2 has beyond its first 24 bits
  Expr p = polynomial(
      r, {0x1.0000000000000p-1, 0x1.555554p-3, 0x1.5554b0p-5, 0x1.11118ap-7, 0x1.6d72e6p-10, 0x1.a032d0p-13});
  return {n, bits(shifted), r, fma(r * r, p, r)};
}

/// y 2^n, rounded once, for n in [-254, 254]; `nBits` as in ExpReduced. Multiplies by two factors, because 2^n itself
/// may not be a normal number.
Expr timesPowerOfTwo(const Expr &y, const Expr &nBits) {
  Expr biased = nBits - u(0x4b400000 - 254);  // n + 254
  Expr half = shr(biased, 1);
  return (y * fromBits(shl(half, 23))) * fromBits(shl(biased - half, 23));
}

Expr expansionOfExp(const Expr &x) {
  // Beyond these the result is 0 or infinity. min and max return their second operand if it is NaN.
  Expr clamped = min(fimm(89), max(fimm(-104), x));
  ExpReduced e = reduceExp(clamped);
  return timesPowerOfTwo(e.expm1 + fimm(1), e.nBits);
}

/// 2^r for |r| <= 1/2, and exactly 1 for r = 0. Softmax computes exp2 for every score because its reduction needs no
/// multiplication. Degree six leaves an approximation error of 2^-28.3, a thirtieth of the rounding error.
Expr mantissaOfExp2(const Expr &r) {
  return polynomial(r, {1, 0x1.62e430p-1, 0x1.ebfbdcp-3, 0x1.c6af7ap-5, 0x1.3b2dd2p-7, 0x1.5f0958p-10, 0x1.417afcp-13});
}

Expr expansionOfExp2(const Expr &x) {
  Expr clamped = min(fimm(130), max(fimm(-160), x));  // as in exp
  Expr shifted = clamped + fimm(0x1.8p23);
  Expr r = clamped - (shifted - fimm(0x1.8p23));  // exact
  return timesPowerOfTwo(mantissaOfExp2(r), bits(shifted));
}

Expr expansionOfTanh(const Expr &x) {
  // tanh |x| = -E / (E + 2), E = exp(-2|x|) - 1 to full relative accuracy, so that small x needs no case of its own.
  Expr y = max(fimm(-40), unary(UnaryOp::abs, x) * fimm(-2));
  ExpReduced e = reduceExp(y);
  Expr scale = fromBits(shl(e.nBits - u(0x4b400000 - 127), 23));
  Expr em1 = fma(e.expm1, scale, scale - fimm(1));
  // For |x| > 0.55: 1 - 2 exp(-2|x|) / (E + 2). The quotient only corrects 1, so its rounding errors matter less.
  Expr large = compare(BinaryOp::lt, y, fimm(-1.1));
  Expr q = select(large, fma(e.expm1, scale, scale) * fimm(-2), fimm(0) - em1) / (em1 + fimm(2));
  Expr t = select(large, fimm(1) + q, q);
  Expr sign = binary(BinaryOp::and_, bits(x), u(0x80000000));
  return fromBits(binary(BinaryOp::or_, bits(t), sign));  // t >= +0
}

Expr expansionOfLog(const Expr &x) {
  // x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); denormals are scaled up first.
  Expr small = compare(BinaryOp::lt, x, fimm(0x1p-126));
  Expr scaled = select(small, x * fimm(0x1p25), x);
  constexpr uint32_t one = 0x3f800000, rootHalf = 0x3f3504f3;
  Expr t = bits(scaled) + u(one - rootHalf);
  Expr f = fromBits(binary(BinaryOp::and_, t, u(0x7fffff)) + u(rootHalf)) - fimm(1);
  Expr e = cast(DType::f32, bitcast(DType::i32, shr(t, 23))) - select(small, fimm(152), fimm(127));
  Expr p = polynomial(f, {0x1.555548p-2, -0x1.000006p-2, 0x1.99a4b6p-3, -0x1.555c4ep-3, 0x1.233768p-3, -0x1.fc2206p-4,
                          0x1.e6f062p-4, -0x1.de3c1cp-4, 0x1.1457c4p-4});
  Expr f2 = f * f;
  Expr tail = fma(f2 * f, p, e * fimm(0x1.7f7d1cp-20));  // ln 2 = 0x1.62e4p-1, of which e multiples are exact, + this
  tail = fma(f2, fimm(-0.5), tail);
  Expr y = fma(e, fimm(0x1.62e4p-1), f + tail);
  y = select(compare(BinaryOp::lt, x, fimm(infinity)), y, x);  // infinity and NaN
  y = select(compare(BinaryOp::gt, x, fimm(0)), y,
             select(compare(BinaryOp::eq, x, fimm(0)), fimm(-infinity), fimm(std::numeric_limits<float>::quiet_NaN())));
  return select(compare(BinaryOp::ne, x, x), x, y);
}

/// sin(x + quarters * pi/2). Computed in f64, which has enough bits for the reduction; these functions are rare.
Expr expansionOfSin(const Expr &x, int quarters) {
  auto d = [](double v) { return fimm(v, DType::f64); };
  Expr wide = cast(DType::f64, x);
  Expr k = unary(UnaryOp::floor, fma(wide, d(0x1.45f306dc9c883p-1), d(0.5)));
  Expr r = fma(k, d(-0x1.921fb54442d18p+0), wide);
  r = fma(k, d(-0x1.1a62633145c07p-54), r);
  Expr z = r * r;
  Expr sine = fma(
      r * z,
      polynomial(z, {-0x1.5555554ca456bp-3, 0x1.1111088663182p-7, -0x1.a00f90afa505cp-13, 0x1.6cd538e9549d1p-19}), r);
  Expr cosine =
      fma(z * z,
          polynomial(z, {0x1.5555554f3f29bp-5, -0x1.6c16b8883ba9fp-10, 0x1.a011151148f3bp-16, -0x1.2428845e4d15ap-22}),
          fma(z, d(-0.5), d(1)));
  Expr q = k + d(quarters);
  q = q - unary(UnaryOp::floor, q * d(0.25)) * d(4);  // 0, 1, 2 or 3
  Expr odd = binary(BinaryOp::or_, compare(BinaryOp::eq, q, d(1)), compare(BinaryOp::eq, q, d(3)));
  Expr y = select(odd, cosine, sine);
  y = select(compare(BinaryOp::ge, q, d(2)), -y, y);
  // The reduction holds up to 2^40; sin(-0) is -0.
  y = select(compare(BinaryOp::le, unary(UnaryOp::abs, x), fimm(0x1p40)), y,
             d(std::numeric_limits<double>::quiet_NaN()));
  Expr f = cast(DType::f32, y);
  return quarters ? f : select(compare(BinaryOp::eq, x, fimm(0)), x, f);
}

MathExpansion expand(UnaryOp op) {
  Var v = makeVar("x", DType::f32);
  Expr x = ref(v);
  switch (op) {
  case UnaryOp::exp:
  case UnaryOp::exp_approx:
    return {v, expansionOfExp(x)};
  case UnaryOp::exp2: {
    Var r = makeVar("r", DType::f32);
    return {v, expansionOfExp2(x), r, mantissaOfExp2(ref(r))};
  }
  case UnaryOp::log:
    return {v, expansionOfLog(x)};
  case UnaryOp::tanh:
    return {v, expansionOfTanh(x)};
  case UnaryOp::sin:
    return {v, expansionOfSin(x, 0)};
  case UnaryOp::cos:
    return {v, expansionOfSin(x, 1)};
  default:
    return {};
  }
}

}  // namespace

const MathExpansion &expandMath(UnaryOp op) {
  static const std::array<MathExpansion, kir::numUnaryOps> all = [] {
    std::array<MathExpansion, kir::numUnaryOps> a;
    for (size_t i = 0; i < a.size(); ++i)
      a[i] = expand(UnaryOp(i));
    return a;
  }();
  return all[int(op)];
}

}  // namespace gptc
