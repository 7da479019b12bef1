// Random numbers are a pure function of (seed, step, stream, sequence, index). They never depend on rank, micro-step,
// offset or padding.
//
//   key     = words 0 and 1 of philox4x32-10(counter = {step lo, step hi, stream, sequence lo},
//             key = {seed lo, seed hi ^ sequence hi})
//             (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")
//   value   = mix32(index, key): two multiply-xorshift rounds keyed by the two words; cheap enough to recompute in
//             kernels
//   uniform in [0,1): value * 2^-32 (top 24 bits, exact in f32)
#pragma once

#include "ir/kernel/kernel.h"

#include <cstdint>
#include <utility>

namespace gptc {

struct RandomKey {
  uint32_t k0, k1;
};
RandomKey randomKey(uint64_t seed, uint64_t step, uint32_t stream, uint64_t sequence);
uint32_t randomBits(RandomKey key, uint64_t index);
/// Uniform in [0,1), a multiple of 2^-24.
double randomUniform(RandomKey key, uint64_t index);
/// Standard normal by Box-Muller on indices 2*index and 2*index+1.
double randomNormal(RandomKey key, uint64_t index);

/// The same functions as kernel expressions, equal bit for bit. Both words are u32.
struct RandomKeyExpr {
  kir::Expr k0, k1;
};
/// All arguments are i64; only the low word of `stream` is used.
RandomKeyExpr randomKeyExpr(kir::Expr seed, kir::Expr step, kir::Expr stream, kir::Expr sequence);
/// `index` is i64, or u32 if it is known to be below 2^32 (half the work in a vector loop).
kir::Expr randomBitsExpr(const RandomKeyExpr &key, kir::Expr index);

}  // namespace gptc
