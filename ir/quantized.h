// Weights as integers of 8 or 4 bits in blocks that share a scale, as in ggml's Q8_0 and Q4_0, and the rounding to 8
// bits of what they are multiplied with.
//
// A matrix [K,N] (with tb [N,K]) has blocks of 32 elements along K. It is kept in panels of `cols` columns:
//   numbers  u32 [ceil(N/cols), K/4, cols]: element (k, n) is byte (k % 32) / 8 of the word [n / cols, k / 32 * 8 + k %
//            8, n % cols], plus 128. So a vector of words has the four bytes that one instruction multiplies for each
//            of its columns, and eight words side by side in memory are a block of a row. With 4 bits [ceil(N/cols),
//            K/8, cols]: the lower halves of the bytes of words 0 to 3 of a block are those of its words 0 to 3, the
//            upper ones of its words 4 to 7, plus 8.
//   scales   f16 [ceil(N/cols), K/32, cols]
// An element is (number - 128) * scale, with 4 bits (number - 8) * scale. Columns past N have the scale 0.
#pragma once

#include "ir/type.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>

namespace gptc {

/// Elements of a block.
inline constexpr int64_t quantBlock = 32;

/// The types of a matrix's numbers and scales in panels of `cols` columns; nullopt if it is no matrix of whole blocks.
struct QuantizedType {
  Type numbers, scales;
};
std::optional<QuantizedType> quantizedType(const Type &b, int64_t cols, bool tb, int64_t bits);

/// What is added to an integer.
inline int64_t quantOffset(int64_t bits) { return int64_t(1) << (bits - 1); }

/// Where element (k, n) is: its word, the bits that its number is shifted by, and its scale.
struct QuantizedPlace {
  int64_t word, scale;
  unsigned shift;
};
inline QuantizedPlace quantizedPlace(int64_t k, int64_t n, int64_t rows, int64_t cols, int64_t bits) {
  const int64_t words = quantBlock * bits / 32, block = k / quantBlock, panel = n / cols, column = n % cols,
                word = k % 8, byte = k % quantBlock / 8;
  return {((panel * (rows / quantBlock) + block) * words + word % words) * cols + column,
          (panel * (rows / quantBlock) + block) * cols + column, unsigned(byte * 8 + word / words * 4)};
}

/// A block of a row rounded to integers of at most 127, by integers alone, so that any precision of floats gives the
/// same. With the largest magnitude M 2^E (M of 24 bits), integers are
/// x * j / 2^E 2^23, to nearest and away from zero, where j = floor(127 * 2^23 / M) is from 63 to 127; the scale is
/// 2^E 2^23 / j. Denormals count as 0. A block with an infinity or a NaN has the scale NaN.
struct RoundedBlock {
  int8_t q[quantBlock];
  double scale;
};
inline RoundedBlock roundBlock(const float *x) {
  RoundedBlock r;
  uint32_t top = 0;
  for (int i = 0; i < quantBlock; ++i)
    top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7fffffff);
  const uint32_t exponent = top >> 23, j = (127u << 23) / ((top & 0x7fffff) | 1 << 23);
  for (int i = 0; i < quantBlock; ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t own = bits >> 23 & 255, mantissa = own ? (bits & 0x7fffff) | 1 << 23 : 0;
    const uint32_t shift = std::min(31u, exponent - own + 23);
    const uint32_t q = exponent - own < 9 ? (mantissa * j + (1u << (shift - 1))) >> shift : 0;
    r.q[i] = int8_t(bits >> 31 ? 0 - q : q);
  }
  r.scale = exponent == 255 ? std::numeric_limits<double>::quiet_NaN()
            : exponent == 0 ? 0
                            : double(std::bit_cast<float>(exponent << 23)) / j;
  return r;
}

}  // namespace gptc
