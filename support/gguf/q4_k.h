// Rounding to Q4_K, ggml's format of super-blocks: 256 values in eight groups of 32, each with a scale and a minimum of
// 6 bits, which two f16 of the super-block scale. A value is d * scale * number - dmin * minimum, with a number of 4
// bits.
#pragma once

#include <cstdint>

namespace gptc {

/// Rounds 256 values into a block of 144 bytes. The search is our own: on normal numbers the RMS error is 7.0% of their
/// RMS (Q4_0: 8.6%). False, with a block of zeros, if a value is not finite or f16 cannot hold a scale.
bool writeQ4_K(const float *values, uint8_t *block);

}  // namespace gptc
