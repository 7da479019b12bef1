// The operators of the kernel IR on values. Constant folding and the interpreter share these functions, so that both
// give an expression the same value.
//
// Integers are passed as int64_t in the canonical form of their dtype: i32 sign-extended, u32 zero-extended, pred 0 or
// 1.
#pragma once

#include "ir/kernel/kernel.h"
#include "support/diagnostics.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace gptc::kir {

inline int bitsOf(DType t) { return t == DType::pred ? 1 : int(sizeOf(t)) * 8; }

/// The canonical form of the low bits of `v`.
inline int64_t wrapInt(DType t, int64_t v) {
  switch (t) {
  case DType::i32:
    return int32_t(uint32_t(v));
  case DType::u32:
    return int64_t(uint32_t(v));
  case DType::pred:
    return v & 1;
  default:
    return v;
  }
}

inline bool isComparison(BinaryOp op) { return op >= BinaryOp::eq; }

/// Operands and result are canonical (0 or 1 for comparisons). Division truncates. InternalError if it is by zero, and
/// for a shift by the width or more.
inline int64_t evalInt(BinaryOp op, DType t, int64_t a, int64_t b) {
  auto ua = uint64_t(a), ub = uint64_t(b);
  switch (op) {
  case BinaryOp::add:
    return wrapInt(t, int64_t(ua + ub));
  case BinaryOp::sub:
    return wrapInt(t, int64_t(ua - ub));
  case BinaryOp::mul:
    return wrapInt(t, int64_t(ua * ub));
  case BinaryOp::div:
    GPTC_CHECK(b != 0, "integer division by zero");
    return b == -1 ? wrapInt(t, int64_t(0 - ua)) : a / b;
  case BinaryOp::rem:
    GPTC_CHECK(b != 0, "integer remainder by zero");
    return b == -1 ? 0 : a % b;
  case BinaryOp::min:
    return a < b ? a : b;
  case BinaryOp::max:
    return a > b ? a : b;
  case BinaryOp::and_:
    return a & b;
  case BinaryOp::or_:
    return a | b;
  case BinaryOp::xor_:
    return a ^ b;
  case BinaryOp::shl:
  case BinaryOp::shr: {
    GPTC_CHECK(b >= 0 && b < bitsOf(t), "shift by {} of {} bits", b, bitsOf(t));
    if (op == BinaryOp::shl)
      return wrapInt(t, int64_t(ua << ub));
    uint64_t low = bitsOf(t) == 64 ? ua : ua & ((uint64_t(1) << bitsOf(t)) - 1);
    return wrapInt(t, int64_t(low >> ub));
  }
  case BinaryOp::eq:
    return a == b;
  case BinaryOp::ne:
    return a != b;
  case BinaryOp::lt:
    return a < b;
  case BinaryOp::le:
    return a <= b;
  case BinaryOp::gt:
    return a > b;
  case BinaryOp::ge:
    return a >= b;
  }
  GPTC_UNREACHABLE("binary operator");
}

/// Arithmetic of F, which is float or double. min and max are a < b ? a : b and a > b ? a : b: the second operand if
/// either is NaN.
template <typename F> F evalFloat(BinaryOp op, F a, F b) {
  switch (op) {
  case BinaryOp::add:
    return a + b;
  case BinaryOp::sub:
    return a - b;
  case BinaryOp::mul:
    return a * b;
  case BinaryOp::div:
    return a / b;
  case BinaryOp::min:
    return a < b ? a : b;
  case BinaryOp::max:
    return a > b ? a : b;
  default:
    GPTC_UNREACHABLE("no such operator on floats");
  }
}
inline bool compareFloat(BinaryOp op, double a, double b) {
  switch (op) {
  case BinaryOp::eq:
    return a == b;
  case BinaryOp::ne:
    return a != b;
  case BinaryOp::lt:
    return a < b;
  case BinaryOp::le:
    return a <= b;
  case BinaryOp::gt:
    return a > b;
  case BinaryOp::ge:
    return a >= b;
  default:
    GPTC_UNREACHABLE("not a comparison");
  }
}

/// Rounds to bf16 (nearest even) and back; NaN stays a quiet NaN, denormals become zeros of their sign.
inline float roundBF16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if (x != x)
    u = (u | 0x00400000u) & 0xffff0000u;
  else if ((u & 0x7f800000u) == 0)
    u &= 0x80000000u;
  else
    u = (u + 0x7fffu + ((u >> 16) & 1)) & 0xffff0000u;
  std::memcpy(&x, &u, 4);
  return x;
}
/// Rounds to f16 (nearest even, overflow to infinity) and back.
inline float roundF16(float x) {
  float a = std::fabs(x);
  if (!(a < 65520.0f))  // NaN, or rounded past the largest f16 (65504)
    return x != x ? x : std::copysign(std::numeric_limits<float>::infinity(), x);
  // Adding and subtracting `magic` rounds to the last place of f16 at this exponent; below 2^-14 that place is 2^-24.
  int e = a < 0x1p-14f ? -14 : std::ilogb(a);
  float magic = std::ldexp(1.5f, e + 13);
  return std::copysign((a + magic) - magic, x);
}

/// Rounds to f8e4m3 (nearest even, at most 448 in magnitude) and back.
inline float roundE4M3(float x) {
  const float a = std::fabs(x);
  if (a != a)
    return x;
  if (!(a < 448))
    return std::copysign(448.0f, x);
  // As above. The last place is an eighth of the power of two; below 2^-6 it is 2^-9.
  const float magic = std::ldexp(1.5f, (a < 0x1p-6f ? -6 : std::ilogb(a)) + 20);
  return std::copysign((a + magic) - magic, x);
}

/// The 16 bits of a float that bf16 or f16 holds exactly (as the rounding above gives it), and back.
inline uint16_t bitsOfBF16(float x) { return uint16_t(std::bit_cast<uint32_t>(x) >> 16); }
inline float floatOfBF16(uint16_t b) { return std::bit_cast<float>(uint32_t(b) << 16); }
inline uint16_t bitsOfF16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
  if (magnitude >= 0x7f800000)  // infinity, NaN
    return uint16_t(sign | 0x7c00 | (magnitude > 0x7f800000 ? 0x200 : 0) | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x38800000)  // normal in f16
    return uint16_t(sign | (magnitude - 0x38000000) >> 13);
  return uint16_t(sign | uint32_t(std::fabs(x) * 0x1p24f));
}
inline float floatOfF16(uint16_t b) {
  const uint32_t exponent = b >> 10 & 31, fraction = b & 0x3ff;
  const float a = exponent == 31 ? std::bit_cast<float>(0x7f800000 | fraction << 13)
                  : exponent     ? std::bit_cast<float>((exponent + 112) << 23 | fraction << 13)
                                 : float(fraction) * 0x1p-24f;
  return b & 0x8000 ? -a : a;
}

/// The 8 bits of a float that f8e4m3 holds exactly, and back.
inline uint8_t bitsOfE4M3(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = u >> 24 & 0x80, magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return uint8_t(sign | 0x7f);
  if (magnitude >= 0x3c800000)  // 2^-6: normal in f8e4m3
    return uint8_t(sign | (magnitude - 0x3c000000) >> 20);
  return uint8_t(sign | uint32_t(std::fabs(x) * 0x1p9f));
}
inline float floatOfE4M3(uint8_t b) {
  const uint32_t magnitude = b & 0x7f;
  const float a = magnitude == 0x7f ? std::numeric_limits<float>::quiet_NaN()
                  : magnitude >= 8  ? std::bit_cast<float>(0x3c000000 + (magnitude << 20))
                                    : float(magnitude) * 0x1p-9f;
  return b & 0x80 ? -a : a;
}

/// Pairs of bf16 (kernel.h).
inline uint32_t evalPair(float low, float high) {
  return bitsOfBF16(roundBF16(low)) | uint32_t(bitsOfBF16(roundBF16(high))) << 16;
}
inline float lowOfPair(uint32_t p) { return floatOfBF16(uint16_t(p)); }
inline float highOfPair(uint32_t p) { return floatOfBF16(uint16_t(p >> 16)); }
inline float evalDot(float acc, uint32_t a, uint32_t b) {
  auto flushed = [](float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; };
  float step = flushed(std::fma(flushed(highOfPair(a)), flushed(highOfPair(b)), flushed(acc)));
  return flushed(std::fma(flushed(lowOfPair(a)), flushed(lowOfPair(b)), step));
}

inline int32_t evalDot4(int32_t acc, uint32_t a, uint32_t b) {
  auto sum = uint32_t(acc);
  for (int shift = 0; shift < 32; shift += 8)
    sum += uint32_t(int32_t(uint8_t(a >> shift)) * int8_t(b >> shift));
  return int32_t(sum);
}

/// Rounds to tf32, which has 10 bits of mantissa: to nearest, ties away from zero.
inline float roundTF32(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  return (u & 0x7f800000) == 0x7f800000 ? x : std::bit_cast<float>((u + 0x1000) & 0xffffe000);
}
/// One step of a tensor core: the exact sum of `acc` and n exact products, rounded once, towards zero. GPUs add in an
/// order of their own and cut off bits too far below the largest (Fasi, Higham, Mikaitis, Pranesh 2021, "Numerical
/// behavior of NVIDIA tensor cores"), so their bits may differ, by at most mmaError.
inline float evalMma(float acc, const float *a, const float *b, int n) {
  double sum = acc;
  for (int k = 0; k < n; ++k)
    sum += double(a[k]) * b[k];
  const auto r = float(sum);
  return std::isfinite(r) && std::fabs(r) > std::fabs(sum) ? std::nextafter(r, 0.0f) : r;
}
/// Bound of the error of a step. `magnitudes` is the sum of the absolute values of acc and the products: each of the n
/// + 1 summands loses less than a unit in the last place (2^-23) of the largest, and the result as much; twice that if
/// a GPU splits the step in two.
inline double mmaError(double magnitudes, int n) { return (n + 4) * 0x1p-23 * magnitudes + 0x1p-126; }

template <typename F> F evalUnaryFloat(UnaryOp op, F a) {
  switch (op) {
  case UnaryOp::neg:
    return -a;
  case UnaryOp::abs:
    return std::fabs(a);
  case UnaryOp::sqrt:
    return std::sqrt(a);
  case UnaryOp::rsqrt:
    return F(1) / std::sqrt(a);
  case UnaryOp::exp:
  case UnaryOp::exp_approx:
    return std::exp(a);
  case UnaryOp::exp2:
    return std::exp2(a);
  case UnaryOp::log:
    return std::log(a);
  case UnaryOp::tanh:
    return std::tanh(a);
  case UnaryOp::floor:
    return std::floor(a);
  case UnaryOp::sin:
    return std::sin(a);
  case UnaryOp::cos:
    return std::cos(a);
  case UnaryOp::round_bf16:
    return roundBF16(float(a));
  case UnaryOp::round_f16:
    return roundF16(float(a));
  case UnaryOp::round_e4m3:
    return roundE4M3(float(a));
  default:
    GPTC_UNREACHABLE("no such operator on floats");
  }
}
inline int64_t evalUnaryInt(UnaryOp op, DType t, int64_t a) {
  switch (op) {
  case UnaryOp::neg:
    return wrapInt(t, int64_t(0 - uint64_t(a)));
  case UnaryOp::abs:
    return a < 0 ? wrapInt(t, int64_t(0 - uint64_t(a))) : a;
  case UnaryOp::not_:
    return wrapInt(t, ~a);
  default:
    GPTC_UNREACHABLE("no such operator on integers");
  }
}

/// Float to integer truncates. Out of range the result is unspecified in code; here it is 0, so that nothing traps.
inline int64_t floatToInt(DType t, double v) {
  if (t == DType::pred)
    return v != 0;
  double bound = t == DType::i64 ? 9223372036854775808.0 : t == DType::u32 ? 4294967296.0 : 2147483648.0;
  double low = t == DType::u32 ? -1.0 : -bound - 1.0;
  if (!(v < bound && v > low))
    return 0;
  return wrapInt(t, int64_t(v));
}

}  // namespace gptc::kir
