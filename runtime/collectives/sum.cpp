#include "runtime/collectives/sum.h"
#include "support/diagnostics.h"

#include <bit>
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gptc {

template <class T> static void add(void *to, const void *a, const void *b, size_t n) {
  auto *t = static_cast<T *>(to);
  const auto *x = static_cast<const T *>(a), *y = static_cast<const T *>(b);
  for (size_t i = 0; i < n; ++i)
    t[i] = x[i] + y[i];
}

/// Rounds like kernels (roundBF16 of ir/kernel/eval.h), but without branches, so that loops vectorise: to nearest, ties
/// to even; subnormals to zero; NaN stays NaN.
static inline uint16_t bf16Of(float f) {
  const uint32_t x = std::bit_cast<uint32_t>(f);
  const uint32_t rounded = (x + 0x7fff + ((x >> 16) & 1)) >> 16;
  const uint32_t nan = (x >> 16) | 0x40, zero = (x >> 16) & 0x8000;
  return uint16_t((x & 0x7fffffff) > 0x7f800000 ? nan : (x & 0x7f800000) == 0 ? zero : rounded);
}
static inline float floatOfBF16(uint16_t x) { return std::bit_cast<float>(uint32_t(x) << 16); }

// Adding two bf16 or f16 in f32 and rounding to their format gives the correctly rounded sum, because f32 has more than
// twice their digits.
static void addBF16(void *to, const void *a, const void *b, size_t n) {
  auto *t = static_cast<uint16_t *>(to);
  const auto *x = static_cast<const uint16_t *>(a), *y = static_cast<const uint16_t *>(b);
  for (size_t i = 0; i < n; ++i)
    t[i] = bf16Of(floatOfBF16(x[i]) + floatOfBF16(y[i]));
}

static float floatOfF16(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff;
  if (exponent == 31)
    return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent == 0) {
    const float f = float(fraction) * 0x1p-24f;
    return sign ? -f : f;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

static uint16_t f16Of(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f), x = bits & 0x7fffffff;
  const auto sign = uint16_t(bits >> 16 & 0x8000);
  if (x > 0x7f800000)
    return sign | 0x7e00 | uint16_t(x >> 13 & 0x3ff);
  if (x >= 0x477ff000)  // at least 65520
    return sign | 0x7c00;
  if (x < 0x38800000)  // subnormal: the addition rounds at the last place of subnormals
    return sign | uint16_t(std::bit_cast<uint32_t>(std::bit_cast<float>(x) + 0.5f) - 0x3f000000);
  return sign | uint16_t((x - 0x38000000 + 0xfff + (x >> 13 & 1)) >> 13);
}

static void addF16Plain(uint16_t *t, const uint16_t *x, const uint16_t *y, size_t n) {
  for (size_t i = 0; i < n; ++i)
    t[i] = f16Of(floatOfF16(x[i]) + floatOfF16(y[i]));
}

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) static size_t addF16Wide(uint16_t *t, const uint16_t *x, const uint16_t *y,
                                                              size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 a = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(x + i)));
    const __m256 b = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(y + i)));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(t + i),
                     _mm256_cvtps_ph(_mm256_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  return i;
}
#endif

static void addF16(void *to, const void *a, const void *b, size_t n) {
  auto *t = static_cast<uint16_t *>(to);
  const auto *x = static_cast<const uint16_t *>(a), *y = static_cast<const uint16_t *>(b);
  size_t done = 0;
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (wide)
    done = addF16Wide(t, x, y, n);
#endif
  addF16Plain(t + done, x + done, y + done, n - done);
}

void addElements(DType t, void *to, const void *a, const void *b, size_t n) {
  switch (t) {
  case DType::f32:
    return add<float>(to, a, b, n);
  case DType::f64:
    return add<double>(to, a, b, n);
  case DType::bf16:
    return addBF16(to, a, b, n);
  case DType::f16:
    return addF16(to, a, b, n);
  case DType::i32:
  case DType::u32:
    return add<uint32_t>(to, a, b, n);
  case DType::i64:
    return add<uint64_t>(to, a, b, n);
  case DType::f8e4m3:
  case DType::pred:
    break;
  }
  GPTC_UNREACHABLE("a sum of {}", nameOf(t).str());
}

}  // namespace gptc
