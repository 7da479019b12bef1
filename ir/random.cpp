#include "ir/random.h"

#include <array>
#include <cmath>
#include <numbers>

namespace gptc {

// Every formula is a template over the word it computes with: uint32_t on the host, kir::Expr (u32) in kernels. So the
// two cannot diverge.
namespace {

uint32_t constantLike(uint32_t c, uint32_t) { return c; }
kir::Expr constantLike(uint32_t c, const kir::Expr &) { return kir::imm(int64_t(c), DType::u32); }

uint32_t xorOf(uint32_t a, uint32_t b) { return a ^ b; }
kir::Expr xorOf(kir::Expr a, kir::Expr b) { return kir::binary(kir::BinaryOp::xor_, std::move(a), std::move(b)); }

uint32_t shiftRight(uint32_t a, unsigned n) { return a >> n; }
kir::Expr shiftRight(kir::Expr a, unsigned n) {
  return kir::binary(kir::BinaryOp::shr, std::move(a), kir::imm(n, DType::u32));
}

uint32_t highProduct(uint32_t a, uint32_t b) { return uint32_t((uint64_t(a) * b) >> 32); }
kir::Expr highProduct(const kir::Expr &a, uint32_t b) {
  // Casts of u32 extend with zeros, products wrap and shifts are logical: the upper half of the unsigned product.
  kir::Expr wide = kir::cast(DType::i64, a) * kir::imm(int64_t(b));
  return kir::cast(DType::u32, kir::binary(kir::BinaryOp::shr, std::move(wide), kir::imm(32)));
}

/// Philox4x32-10 (Salmon et al. 2011, section 3.3); the first two words of the result.
template <typename Word> std::pair<Word, Word> philox(std::array<Word, 4> c, Word key0, Word key1) {
  constexpr uint32_t multiplier0 = 0xD2511F53, multiplier1 = 0xCD9E8D57;
  constexpr uint32_t weyl0 = 0x9E3779B9, weyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    Word high0 = highProduct(c[0], multiplier0), low0 = c[0] * constantLike(multiplier0, c[0]);
    Word high1 = highProduct(c[2], multiplier1), low1 = c[2] * constantLike(multiplier1, c[2]);
    c = {xorOf(xorOf(high1, c[1]), key0), low1, xorOf(xorOf(high0, c[3]), key1), low0};
    key0 = key0 + constantLike(weyl0, key0);
    key1 = key1 + constantLike(weyl1, key1);
  }
  return {c[0], c[1]};
}

/// Two rounds of multiply-xorshift with the constants of the "lowbias32" hash, keyed before each round. `high` is the
/// upper word of the index; the multiplication spreads it, so that rows 2^32 apart do not share values.
template <typename Word> Word mix(Word low, Word high, Word k0, Word k1) {
  Word h = xorOf(low + high * constantLike(0x9E3779B1, low), k0);
  h = xorOf(h, shiftRight(h, 16)) * constantLike(0x7FEB352D, low);
  h = xorOf(xorOf(h, shiftRight(h, 15)), k1) * constantLike(0x846CA68B, low);
  return xorOf(h, shiftRight(h, 16));
}

kir::Expr lowWord(const kir::Expr &e) { return kir::cast(DType::u32, e); }
kir::Expr highWord(const kir::Expr &e) {
  return kir::cast(DType::u32, kir::binary(kir::BinaryOp::shr, e, kir::imm(32)));
}

}  // namespace

RandomKey randomKey(uint64_t seed, uint64_t step, uint32_t stream, uint64_t sequence) {
  auto [k0, k1] = philox<uint32_t>({uint32_t(step), uint32_t(step >> 32), stream, uint32_t(sequence)}, uint32_t(seed),
                                   uint32_t(seed >> 32) ^ uint32_t(sequence >> 32));
  return {k0, k1};
}

uint32_t randomBits(RandomKey key, uint64_t index) {
  return mix<uint32_t>(uint32_t(index), uint32_t(index >> 32), key.k0, key.k1);
}

double randomUniform(RandomKey key, uint64_t index) { return double(randomBits(key, index) >> 8) * 0x1p-24; }

double randomNormal(RandomKey key, uint64_t index) {
  // 1 - uniform is in (0,1], so that the logarithm is finite.
  double radius = std::sqrt(-2.0 * std::log(1.0 - randomUniform(key, 2 * index)));
  return radius * std::cos(2.0 * std::numbers::pi * randomUniform(key, 2 * index + 1));
}

RandomKeyExpr randomKeyExpr(kir::Expr seed, kir::Expr step, kir::Expr stream, kir::Expr sequence) {
  auto [k0, k1] = philox<kir::Expr>({lowWord(step), highWord(step), lowWord(stream), lowWord(sequence)}, lowWord(seed),
                                    xorOf(highWord(seed), highWord(sequence)));
  return {k0, k1};
}

kir::Expr randomBitsExpr(const RandomKeyExpr &key, kir::Expr index) {
  if (index->dtype == DType::u32) {
    kir::Expr zero = kir::imm(0, DType::u32);
    return mix<kir::Expr>(std::move(index), zero, key.k0, key.k1);
  }
  return mix<kir::Expr>(lowWord(index), highWord(index), key.k0, key.k1);
}

}  // namespace gptc
