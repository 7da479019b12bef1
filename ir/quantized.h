// Weights as integers of 8 or 4 bits in blocks that share a scale, as in ggml's Q8_0, Q4_0 and Q4_K, and the rounding
// to 8 bits of what they are multiplied with.
//
// A matrix [K,N] (with tb [N,K]) has blocks of 32 elements along K. It is kept in panels of `cols` columns:
//   numbers  u32 [ceil(N/cols), K/4, cols]: element (k, n) is byte (k % 32) / 8 of the word [n / cols, k / 32 * 8 + k %
//            8, n % cols], plus 128. So a vector of words has the four bytes that one instruction multiplies for each
//            of its columns, and eight words side by side in memory are a block of a row. With 4 bits [ceil(N/cols),
//            K/8, cols]: the lower halves of the bytes of words 0 to 3 of a block are those of its words 0 to 3, the
//            upper ones of its words 4 to 7, plus 8; of Q4_K plus nothing.
//   scales   f16 [ceil(N/cols), K/32, cols]. Of Q4_K u32 [ceil(N/cols), K/64, cols], two blocks to a word: from the
//            lowest byte on the scale s and the minimum m of the even block, then those of the odd one, 0 to 63.
//   supers   of Q4_K alone, f16 [ceil(N/cols), K/128, cols]: for each 256 elements a row of d, then one of dmin.
// An element is (number - 128) * scale, with 4 bits (number - 8) * scale, of Q4_K (d * s) * number - dmin * m. Columns
// past N have scales of 0.
//
// A product adds blocks in order to one chain from +0. With the sum of products of a block's integers `dot`, the sum of
// the row's own integers `sum`, both exact, and the scale `a` of the row's block:
//   Q8_0, Q4_0   acc = fma(dot, a * scale, acc)
//   Q4_K         acc = fma(dot, a * (d * s), acc), then acc = fma(sum, a * -(dmin * m), acc)
// d * s and dmin * m have at most 17 bits: no float rounds them.
#pragma once

#include "ir/type.h"
#include "support/enum_words.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>

namespace gptc {

class Op;

/// ggml's formats of the same names.
enum class QuantFormat { q8_0, q4_0, q4_k };
template <> inline constexpr auto wordsOf<QuantFormat> = std::to_array({"q8_0", "q4_0", "q4_k"});
inline constexpr QuantFormat quantFormats[] = {QuantFormat::q8_0, QuantFormat::q4_0, QuantFormat::q4_k};

/// Elements of a block, and of those that share d and dmin.
inline constexpr int64_t quantBlock = 32, superBlock = 256;

inline int64_t bitsOf(QuantFormat format) { return format == QuantFormat::q8_0 ? 8 : 4; }
/// What K must be a multiple of.
inline int64_t elementsOf(QuantFormat format) { return format == QuantFormat::q4_k ? superBlock : quantBlock; }
/// What is added to an integer.
inline int64_t quantOffset(QuantFormat format) {
  return format == QuantFormat::q4_k ? 0 : int64_t(1) << (bitsOf(format) - 1);
}

/// The types of a matrix's numbers, scales and supers in panels of `cols` columns; nullopt if it is no matrix of whole
/// blocks.
struct QuantizedType {
  Type numbers, scales;
  std::optional<Type> supers;  // of q4_k
};
std::optional<QuantizedType> quantizedType(const Type &b, int64_t cols, bool tb, QuantFormat format);

/// The format of the weight of a quantized_matmul or quantized_embedding: q4_k if it has supers, else by its `bits`.
QuantFormat quantFormatOf(const Op &op);

/// Where element (k, n) is: its word, the bits that its number is shifted by, and its scale.
struct QuantizedPlace {
  int64_t word, scale;
  unsigned shift;
  unsigned scaleShift = 0;  // of q4_k: the bits that s is shifted by; m is 8 higher
  int64_t d = 0, dmin = 0;  // of q4_k, in supers
};
inline QuantizedPlace quantizedPlace(int64_t k, int64_t n, int64_t rows, int64_t cols, QuantFormat format) {
  const int64_t words = quantBlock * bitsOf(format) / 32, block = k / quantBlock, panel = n / cols, column = n % cols,
                word = k % 8, byte = k % quantBlock / 8;
  QuantizedPlace p{((panel * (rows / quantBlock) + block) * words + word % words) * cols + column,
                   (panel * (rows / quantBlock) + block) * cols + column, unsigned(byte * 8 + word / words * 4)};
  if (format == QuantFormat::q4_k) {
    p.scale = (panel * (rows / (2 * quantBlock)) + block / 2) * cols + column;
    p.scaleShift = unsigned(block % 2 * 16);
    p.d = (panel * (rows / superBlock) + k / superBlock) * 2 * cols + column;
    p.dmin = p.d + cols;
  }
  return p;
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
