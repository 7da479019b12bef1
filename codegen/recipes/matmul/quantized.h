// What products with weights of 8 or 4 bits compute (ir/quantized.h), as expressions for the loops of CPUs
// (quantized.cpp) and of GPUs (cuda_quantized.cpp): one place for operations whose order is the order of bits.
#pragma once

#include "ir/kernel/kernel.h"
#include "ir/quantized.h"

namespace gptc::matmul::quantized {

using kir::BinaryOp;
using kir::Expr;

/// Words of four bytes in a rounded block of 32.
constexpr int64_t words = quantBlock / 4;

inline Expr u32(int64_t v) { return kir::imm(v, DType::u32); }
inline Expr and_(const Expr &a, const Expr &b) { return kir::binary(BinaryOp::and_, a, b); }
inline Expr or_(const Expr &a, const Expr &b) { return kir::binary(BinaryOp::or_, a, b); }
inline Expr shl(const Expr &a, const Expr &b) { return kir::binary(BinaryOp::shl, a, b); }
inline Expr shr(const Expr &a, const Expr &b) { return kir::binary(BinaryOp::shr, a, b); }
inline Expr eq(const Expr &a, const Expr &b) { return kir::binary(BinaryOp::eq, a, b); }

// ---- gptc::roundBlock, of elements given by the bits (u32) of their f32 ---------------------------------------------

inline Expr magnitudeOf(const Expr &bits) { return and_(bits, u32(0x7fffffff)); }
/// The exponent of the largest magnitude.
inline Expr exponentOf(const Expr &top) { return shr(top, u32(23)); }
/// j.
inline Expr stepsOf(const Expr &top) { return u32(127 << 23) / or_(and_(top, u32(0x7fffff)), u32(1 << 23)); }

/// The integer of an element, as a u32 that wraps.
inline Expr numberOf(const Expr &bits, const Expr &exponent, const Expr &steps) {
  const Expr own = and_(shr(bits, u32(23)), u32(255)), below = exponent - own;
  const Expr mantissa = kir::select(eq(own, u32(0)), u32(0), or_(and_(bits, u32(0x7fffff)), u32(1 << 23)));
  const Expr shift = kir::min(below + 23, u32(31));
  const Expr nearest = shr(mantissa * steps + shl(u32(1), shift - u32(1)), shift);
  const Expr q = kir::select(kir::lt(below, u32(9)), nearest, u32(0));
  return kir::select(eq(shr(bits, u32(31)), u32(1)), u32(0) - q, q);
}

/// Four integers as a word, of which element t(i) becomes byte i.
template <typename F> Expr wordOf(F bits, const Expr &exponent, const Expr &steps) {
  Expr word;
  for (int64_t t = 0; t < 4; ++t) {
    const Expr byte = shl(and_(numberOf(bits(t), exponent, steps), u32(255)), u32(8 * t));
    word = word ? or_(word, byte) : byte;
  }
  return word;
}

/// The sum of a word's four bytes, as an i32.
inline Expr sumOfBytes(const Expr &word) { return kir::dot4(kir::imm(0, DType::i32), u32(0x01010101), word); }

/// The scale of a rounded block.
inline Expr scaleOf(const Expr &exponent, const Expr &steps, DType compute) {
  const Expr unit = kir::cast(compute, kir::bitcast(DType::f32, shl(exponent, u32(23))));
  return kir::select(eq(exponent, u32(255)), kir::cast(compute, kir::bitcast(DType::f32, u32(0x7fc00000))),
                     kir::select(eq(exponent, u32(0)), kir::fimm(0, compute),
                                 unit / kir::cast(compute, kir::bitcast(DType::i32, steps))));
}

/// What the sum of a row's integers is multiplied by, to become what a block's sum starts with. Q4_K, whose numbers
/// have no sign, needs the sum itself.
inline int64_t factorOfSum(QuantFormat format) { return format == QuantFormat::q4_k ? 1 : -quantOffset(format); }

// ---- weights --------------------------------------------------------------------------------------------------------

/// The numbers that `half` (0 or 1) of a word's bytes holds, with 4 bits; with 8 the word.
inline Expr bytesOf(const Expr &word, int64_t half, QuantFormat format) {
  return bitsOf(format) == 8 ? word : and_(half ? shr(word, u32(4)) : word, u32(0x0f0f0f0f));
}

/// Six bits of a word of Q4_K's scales, for block b: of the scale (bit 0) or of the minimum (bit 8).
inline Expr sixBits(const Expr &word, const Expr &b, int64_t bit, DType compute) {
  const Expr shift = kir::cast(DType::u32, b % kir::imm(2)) * 16 + bit;
  return kir::cast(compute, kir::bitcast(DType::i32, and_(shr(word, shift), u32(63))));
}

/// What the sums of a block are multiplied by. minimum: -(dmin * m) of Q4_K, else null.
struct Factors {
  Expr scale, minimum;
};

/// `before` and the sums of one block: `sum` of products, and in Q4_K `own` of the row's integers; a: the scale of the
/// row's block.
inline Expr addBlock(const Expr &sum, const Expr &own, const Expr &a, const Factors &f, const Expr &before) {
  const Expr next = kir::fma(sum, a * f.scale, before);
  return f.minimum ? kir::fma(own, a * f.minimum, next) : next;
}

}  // namespace gptc::matmul::quantized
