// Rounding to Q4_K, ggml's format of super-blocks: 256 values in eight groups of 32, each with a scale and a minimum of
// 6 bits, which two f16 of the super-block scale. A value is d * scale * number - dmin * minimum, with a number of 4
// bits.
#pragma once

#include <cstdint>

namespace gptc {

/// Scale and minimum of the eight groups of 32 in a block of Q4_K or Q5_K, 6 bits each in 12 bytes: the first four of
/// either in the low bits of bytes 0..3 and 4..7; of the last four the low halves are in bytes 8..11 and the upper two
/// bits on top of the first eight.
struct SixBits {
  int scale, least;
  SixBits(const uint8_t *p, int group) {
    const int i = group % 4;
    if (group < 4) {
      scale = p[i] & 63;
      least = p[4 + i] & 63;
    } else {
      scale = (p[8 + i] & 15) | (p[i] >> 6) << 4;
      least = (p[8 + i] >> 4) | (p[4 + i] >> 6) << 4;
    }
  }
};

/// Rounds 256 values into a block of 144 bytes. The search is our own: on normal numbers the RMS error is 7.0% of their
/// RMS (Q4_0: 8.5%). False, with a block of zeros, if a value is not finite or f16 cannot hold a scale.
bool writeQ4_K(const float *values, uint8_t *block);

}  // namespace gptc
