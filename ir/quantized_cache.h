// Keys and values of 8 bits in a cache: blocks of 32 elements of a head that share a scale, as in ggml's Q8_0.
//
// A row of D elements, a multiple of 32, is kept in two tensors:
//   numbers  u32 [D/4]: element e is byte e / (D/4) of the word e % (D/4), plus 128. So neighbours among elements are
//            neighbours among words, and one shift finds them.
//   scales   f16 [D/32]
// An element is (number - 128) * scale, which f32 holds exactly: attention to such a cache has the bits of attention to
// an f32 cache of these elements.
//
// Rounding a block, in f32, with M its largest magnitude:
//   scale   M / 127, then to f16, both to nearest even
//   number  x / scale to nearest, ties away from zero, at most 127 in magnitude; 0 if the scale is 0 or not finite
// f32 and f64 give the same numbers: no f32 is so near to (n + 1/2) * scale that its quotient rounds to n + 1/2, and no
// M / 127 is so near to the middle of two f32 that rounding to f64 before would matter.
// An element is off by at most half a scale, or by 127 2^-25 if that is more.
// A block with an infinity, a NaN, or an element beyond 127 times f16's largest number (about 8.3e6) has a scale that
// is not finite: its elements are NaN.
#pragma once

#include "ir/kernel/kernel.h"
#include "ir/quantized.h"
#include "ir/type.h"

#include <cstdint>
#include <optional>

namespace gptc {

class Op;

/// The types of the numbers and scales of a cache of keys or values [.., D]; nullopt if D has no whole blocks.
struct QuantizedCacheType {
  Type numbers, scales;
};
std::optional<QuantizedCacheType> quantizedCacheType(const Type &cache);

/// Whether attention_cached has a cache of 8 bits.
bool hasQuantizedCache(const Op &attention);

/// Where element e of a row of `size` elements is: its word, the bits that its number is shifted by, and its scale.
struct CachePlace {
  int64_t word, scale;
  unsigned shift;
};
inline CachePlace cachePlace(int64_t e, int64_t size) {
  return {e % (size / 4), e / quantBlock, unsigned(e / (size / 4) * 8)};
}

/// The integer (-127 to 127) that is added to 128 in a byte of a word.
inline int cacheNumber(uint32_t word, unsigned shift) { return int(word >> shift & 255) - 128; }

/// A block as it is kept: integers without the 128, and the scale, a number of f16.
struct CacheBlock {
  int8_t q[quantBlock];
  float scale;
};
CacheBlock roundCacheBlock(const float *x);

// The same as expressions of kernels.

/// The scale (f32) of a block by its largest magnitude, which is given by its bits (u32).
kir::Expr cacheScale(const kir::Expr &mostBits);
/// The byte (u32) of the element with these bits (u32 of an f32) in a block with this scale (f32).
kir::Expr cacheByte(const kir::Expr &bits, const kir::Expr &scale);
/// The element of byte `plane` (i64, 0 to 3) of a word, in the dtype of `scale`.
kir::Expr cacheElement(const kir::Expr &word, const kir::Expr &plane, const kir::Expr &scale);

}  // namespace gptc
