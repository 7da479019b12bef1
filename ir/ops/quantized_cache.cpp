// Rounding keys and values to 8 bits, for the interpreter and for kernels (ir/quantized_cache.h). Both sides take the
// same steps: a change of one is a change of the other.
#include "ir/quantized_cache.h"
#include "ir/element.h"
#include "ir/graph.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace gptc {

using namespace kir;

namespace {

constexpr uint32_t magnitudeBits = 0x7fffffff;
/// The largest integer.
constexpr int most = 127;

/// Whether numbers of a block are other than 0.
bool isUsable(float scale) { return scale > 0 && scale < std::numeric_limits<float>::infinity(); }

Expr isUsable(const Expr &scale) {
  return binary(BinaryOp::and_, lt(fimm(0), scale), lt(scale, fimm(std::numeric_limits<double>::infinity())));
}

Expr bit(int64_t v) { return imm(v, DType::u32); }

}  // namespace

std::optional<QuantizedCacheType> quantizedCacheType(const Type &cache) {
  if (cache.rank() < 1 || cache.padded(-1) != cache.dim(-1) || cache.dim(-1) % quantBlock)
    return std::nullopt;
  QuantizedCacheType t{cache.withDType(DType::u32), cache.withDType(DType::f16)};
  t.numbers.dims.back() = Dim(cache.dim(-1) / 4);
  t.scales.dims.back() = Dim(cache.dim(-1) / quantBlock);
  return t;
}

bool hasQuantizedCache(const Op &attention) { return attention.operand(1)->type.dtype == DType::u32; }

CacheBlock roundCacheBlock(const float *x) {
  uint32_t top = 0;  // of bits, so that a NaN is the largest
  for (int i = 0; i < quantBlock; ++i)
    top = std::max(top, std::bit_cast<uint32_t>(x[i]) & magnitudeBits);
  CacheBlock block{};
  block.scale = float(roundTo(DType::f16, std::bit_cast<float>(top) / float(most)));
  for (int i = 0; isUsable(block.scale) && i < quantBlock; ++i) {
    const float steps = std::min(std::fabs(x[i]) / block.scale, float(most)), below = std::floor(steps);
    const int q = int(below) + (steps - below >= 0.5f);
    block.q[i] = int8_t(std::signbit(x[i]) ? -q : q);
  }
  return block;
}

/// To the nearest f16, ties to even, on bits: an interpreter that rounds no floats gives the same.
Expr cacheScale(const Expr &mostBits) {
  auto and_ = [](const Expr &a, const Expr &b) { return binary(BinaryOp::and_, a, b); };
  const Expr exact = bitcast(DType::u32, bitcast(DType::f32, mostBits) / fimm(most));
  const Expr isOdd = and_(binary(BinaryOp::shr, exact, bit(13)), bit(1));
  const Expr nearest = and_(exact + 0xfff + isOdd, bit(0xffffe000));
  const Expr infinity = select(lt(bit(0x7f800000), exact), exact, bit(0x7f800000));  // or NaN
  const Expr scale = bitcast(DType::f32, select(lt(nearest, bit(0x47800000)), nearest, infinity));
  // Below 2^-14 the last place is 2^-24, as it is of 0.5.
  const Expr small = bitcast(DType::f32, bitcast(DType::u32, bitcast(DType::f32, exact) + fimm(0.5))) - fimm(0.5);
  return select(lt(exact, bit(113 << 23)), small, scale);
}

Expr cacheByte(const Expr &bits, const Expr &scale) {
  const Expr usable = isUsable(scale), by = select(usable, scale, fimm(1));
  const Expr magnitude = bitcast(DType::f32, binary(BinaryOp::and_, bits, bit(magnitudeBits)));
  const Expr steps = min(magnitude / by, fimm(most));  // `most` of a NaN, which no integer could hold
  const Expr below = unary(UnaryOp::floor, steps);
  const Expr q = cast(DType::i32, below + select(binary(BinaryOp::le, fimm(0.5), steps - below), fimm(1), fimm(0)));
  const Expr isNegative = binary(BinaryOp::eq, binary(BinaryOp::shr, bits, bit(31)), bit(1));
  const Expr number = select(isNegative, imm(128, DType::i32) - q, imm(128, DType::i32) + q);
  return bitcast(DType::u32, select(usable, number, imm(128, DType::i32)));
}

Expr cacheElement(const Expr &word, const Expr &plane, const Expr &scale) {
  const Expr byte = binary(BinaryOp::and_, binary(BinaryOp::shr, word, cast(DType::u32, plane) * 8), bit(255));
  return cast(scale->dtype, bitcast(DType::i32, byte) + -128) * scale;
}

}  // namespace gptc
