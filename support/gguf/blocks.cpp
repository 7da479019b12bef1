#include "support/gguf/blocks.h"

#include "support/diagnostics.h"
#include "support/gguf/q4_k.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace gptc {
namespace {

constexpr int kSmall = 32, kSuper = 256;  // values of a block of the older formats, and of the K formats

constexpr GgmlFormat format(uint32_t number, const char *name, int elements, int bytes) {
  return {GgmlType(number), name, elements, bytes};
}

/// By number. A name without a size belongs to a format that ggml no longer has.
constexpr GgmlFormat kFormats[] = {
    format(0, "F32", 1, 4),          format(1, "F16", 1, 2),          format(2, "Q4_0", 32, 18),
    format(3, "Q4_1", 32, 20),       format(4, "Q4_2", 32, 0),        format(5, "Q4_3", 32, 0),
    format(6, "Q5_0", 32, 22),       format(7, "Q5_1", 32, 24),       format(8, "Q8_0", 32, 34),
    format(9, "Q8_1", 32, 36),       format(10, "Q2_K", 256, 84),     format(11, "Q3_K", 256, 110),
    format(12, "Q4_K", 256, 144),    format(13, "Q5_K", 256, 176),    format(14, "Q6_K", 256, 210),
    format(15, "Q8_K", 256, 292),    format(16, "IQ2_XXS", 256, 66),  format(17, "IQ2_XS", 256, 74),
    format(18, "IQ3_XXS", 256, 98),  format(19, "IQ1_S", 256, 50),    format(20, "IQ4_NL", 32, 18),
    format(21, "IQ3_S", 256, 110),   format(22, "IQ2_S", 256, 82),    format(23, "IQ4_XS", 256, 136),
    format(24, "I8", 1, 1),          format(25, "I16", 1, 2),         format(26, "I32", 1, 4),
    format(27, "I64", 1, 8),         format(28, "F64", 1, 8),         format(29, "IQ1_M", 256, 56),
    format(30, "BF16", 1, 2),        format(31, "Q4_0_4_4", 32, 0),   format(32, "Q4_0_4_8", 32, 0),
    format(33, "Q4_0_8_8", 32, 0),   format(34, "TQ1_0", 256, 54),    format(35, "TQ2_0", 256, 66),
    format(36, "IQ4_NL_4_4", 32, 0), format(37, "IQ4_NL_4_8", 32, 0), format(38, "IQ4_NL_8_8", 32, 0),
    format(39, "MXFP4", 32, 17),     format(40, "NVFP4", 64, 36),     format(41, "Q1_0", 128, 18)};

template <typename T> T at(const uint8_t *bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}
float halfAt(const uint8_t *bytes) { return float(at<_Float16>(bytes)); }

// One block each. The 4-bit formats of 32 values hold value j in the low and value j + 16 in the high half of byte j.

void readQ4_0(const uint8_t *b, float *to) {
  const float d = halfAt(b);
  for (int j = 0; j < kSmall / 2; ++j) {
    to[j] = d * float((b[2 + j] & 15) - 8);
    to[j + kSmall / 2] = d * float((b[2 + j] >> 4) - 8);
  }
}

void readQ4_1(const uint8_t *b, float *to) {
  const float d = halfAt(b), least = halfAt(b + 2);
  for (int j = 0; j < kSmall / 2; ++j) {
    to[j] = d * float(b[4 + j] & 15) + least;
    to[j + kSmall / 2] = d * float(b[4 + j] >> 4) + least;
  }
}

/// Value j of a 5-bit block, whose fifth bits are those of `high`.
int fiveBits(const uint8_t *low, uint32_t high, int j) {
  const int four = j < kSmall / 2 ? low[j] & 15 : low[j - kSmall / 2] >> 4;
  return four | int(high >> j & 1) << 4;
}

void readQ5_0(const uint8_t *b, float *to) {
  const float d = halfAt(b);
  const auto high = at<uint32_t>(b + 2);
  for (int j = 0; j < kSmall; ++j)
    to[j] = d * float(fiveBits(b + 6, high, j) - 16);
}

void readQ5_1(const uint8_t *b, float *to) {
  const float d = halfAt(b), least = halfAt(b + 2);
  const auto high = at<uint32_t>(b + 4);
  for (int j = 0; j < kSmall; ++j)
    to[j] = d * float(fiveBits(b + 8, high, j)) + least;
}

void readQ8_0(const uint8_t *b, float *to) {
  const float d = halfAt(b);
  for (int j = 0; j < kSmall; ++j)
    to[j] = float(int8_t(b[2 + j])) * d;
}

/// Q4_K, and Q5_K if `fifth` points to its fifth bits: bit g of byte j belongs to value j of group g. Two groups share
/// 32 bytes of `low`, the even one in the lower halves.
void readFourOrFiveK(const uint8_t *b, const uint8_t *fifth, const uint8_t *low, float *to) {
  const float d = halfAt(b), dLeast = halfAt(b + 2);
  for (int g = 0; g < kSuper / 32; ++g) {
    const SixBits six(b + 4, g);
    const float scale = d * float(six.scale), least = dLeast * float(six.least);
    for (int j = 0; j < 32; ++j) {
      const int byte = low[g / 2 * 32 + j];
      const int value = (g % 2 ? byte >> 4 : byte & 15) | (fifth ? (fifth[j] >> g & 1) << 4 : 0);
      to[32 * g + j] = scale * float(value) - least;
    }
  }
}

void readQ4_K(const uint8_t *b, float *to) { readFourOrFiveK(b, nullptr, b + 16, to); }
void readQ5_K(const uint8_t *b, float *to) { readFourOrFiveK(b, b + 16, b + 48, to); }

/// Each half of 128 values has 64 bytes of low halves and 32 bytes of upper pairs of bits. Groups of 32 values 0 and 1
/// are in the lower halves of its bytes 0..31 and 32..63, groups 2 and 3 in the upper halves.
void readQ6_K(const uint8_t *b, float *to) {
  const float d = halfAt(b + 208);
  for (int half = 0; half < 2; ++half)
    for (int g = 0; g < 4; ++g)
      for (int j = 0; j < 32; ++j) {
        const int low = b[64 * half + g % 2 * 32 + j], high = b[128 + 32 * half + j] >> 2 * g & 3;
        const int value = ((g < 2 ? low & 15 : low >> 4) | high << 4) - 32, i = 128 * half + 32 * g + j;
        to[i] = (d * float(int8_t(b[192 + i / 16]))) * float(value);
      }
}

using ReadBlock = void (*)(const uint8_t *, float *);

ReadBlock readerOf(GgmlType type) {
  switch (type) {
  case GgmlType::q4_0:
    return readQ4_0;
  case GgmlType::q4_1:
    return readQ4_1;
  case GgmlType::q5_0:
    return readQ5_0;
  case GgmlType::q5_1:
    return readQ5_1;
  case GgmlType::q8_0:
    return readQ8_0;
  case GgmlType::q4_k:
    return readQ4_K;
  case GgmlType::q5_k:
    return readQ5_K;
  case GgmlType::q6_k:
    return readQ6_K;
  case GgmlType::f32:
    return [](const uint8_t *b, float *to) { std::memcpy(to, b, 4); };
  case GgmlType::f16:
    return [](const uint8_t *b, float *to) { *to = halfAt(b); };
  case GgmlType::bf16:
    return [](const uint8_t *b, float *to) { *to = std::bit_cast<float>(uint32_t(at<uint16_t>(b)) << 16); };
  }
  return nullptr;
}

/// Whether the rounded value is infinite and the original is not.
bool overflows(float rounded, float was) { return std::isinf(rounded) && std::isfinite(was); }

bool writeQ8_0(const float *v, uint8_t *b) {
  float largest = 0;
  for (int j = 0; j < kSmall; ++j)
    largest = std::max(largest, std::fabs(v[j]));
  const float d = largest / 127, inverse = d != 0 ? 1 / d : 0;
  const auto scale = _Float16(d);
  std::memcpy(b, &scale, 2);
  for (int j = 0; j < kSmall; ++j) {
    const float q = std::round(v[j] * inverse);
    b[2 + j] = uint8_t(int8_t(q >= -128 && q <= 127 ? q : 0));  // out of range only if the scale is not finite
  }
  return !overflows(float(scale), d) &&
         llvm::all_of(llvm::ArrayRef(v, kSmall), [](float x) { return std::isfinite(x); });
}

bool writeQ4_0(const float *v, uint8_t *b) {
  float largest = 0;  // with its sign: it becomes -8
  for (int j = 0; j < kSmall; ++j)
    if (std::fabs(v[j]) > std::fabs(largest))
      largest = v[j];
  const float d = largest / -8, inverse = d != 0 ? 1 / d : 0;
  const auto scale = _Float16(d);
  std::memcpy(b, &scale, 2);
  auto number = [&](float x) {
    const float q = std::fma(x, inverse, 8.5f);       // as compilers contract what ggml says
    return uint8_t(q >= 0 ? std::min(q, 15.0f) : 0);  // NaN: 0
  };
  for (int j = 0; j < kSmall / 2; ++j)
    b[2 + j] = uint8_t(number(v[j]) | number(v[j + kSmall / 2]) << 4);
  return !overflows(float(scale), d) &&
         llvm::all_of(llvm::ArrayRef(v, kSmall), [](float x) { return std::isfinite(x); });
}

}  // namespace

bool GgmlFormat::readable() const { return readerOf(type) != nullptr; }

const GgmlFormat *ggmlFormat(uint32_t number) { return number < std::size(kFormats) ? &kFormats[number] : nullptr; }

const GgmlFormat &ggmlFormat(GgmlType type) { return *ggmlFormat(uint32_t(type)); }

void dequantize(GgmlType type, const void *blocks, int64_t n, float *to) {
  const ReadBlock read = readerOf(type);
  const GgmlFormat &f = ggmlFormat(type);
  GPTC_CHECK(read && n % f.elements == 0, "{} values of {}", n, f.name);
  if (type == GgmlType::f32) {
    std::memcpy(to, blocks, size_t(n) * 4);
    return;
  }
  const auto *b = static_cast<const uint8_t *>(blocks);
  for (int64_t i = 0; i < n; i += f.elements, b += f.bytes)
    read(b, to + i);
}

bool quantize(GgmlType type, const float *values, int64_t n, void *blocks) {
  auto *b = static_cast<uint8_t *>(blocks);
  bool fits = true;
  bool (*write)(const float *, uint8_t *) = nullptr;  // a block
  switch (type) {
  case GgmlType::f32:
    std::memcpy(b, values, size_t(n) * 4);
    return true;
  case GgmlType::f16:
    for (int64_t i = 0; i < n; ++i) {
      const auto half = _Float16(values[i]);
      std::memcpy(b + 2 * i, &half, 2);
      fits &= !overflows(float(half), values[i]);
    }
    return fits;
  case GgmlType::bf16:
    for (int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(values[i]);
      const uint16_t rounded =
          std::isnan(values[i]) ? bits >> 16 | 64 : (uint64_t(bits) + 0x7fff + (bits >> 16 & 1)) >> 16;
      std::memcpy(b + 2 * i, &rounded, 2);
      fits &= !overflows(std::bit_cast<float>(uint32_t(rounded) << 16), values[i]);
    }
    return fits;
  case GgmlType::q8_0:
    write = writeQ8_0;
    break;
  case GgmlType::q4_0:
    write = writeQ4_0;
    break;
  case GgmlType::q4_k:
    write = writeQ4_K;
    break;
  default:
    GPTC_UNREACHABLE("{} is not written", ggmlFormat(type).name);
  }
  const GgmlFormat &f = ggmlFormat(type);
  GPTC_CHECK(n % f.elements == 0, "{} values of {}", n, f.name);
  for (int64_t i = 0; i < n; i += f.elements, b += f.bytes)
    fits &= write(values + i, b);
  return fits;
}

}  // namespace gptc
