// Masked-token loss (Devlin et al. 2019, "BERT"), the objective of an encoder.
//
// Each position is a target with probability 15%. Of the targets, 80% are replaced by [MASK], 10% by a random token,
// and 10% stay unchanged. A position's fate is a pure function of the sequence's key and the position. A sequence
// without any target gets one, so that no batch lacks targets.
#pragma once

#include "ir/random.h"

#include <cstdint>

namespace gptc {

/// Masks targets among the tokens x[0..count), which must be below maskToken. y is the original token at a target, else
/// -1. Returns the number of targets, at least 1 (count > 0).
int64_t maskTokens(RandomKey key, int64_t count, int32_t maskToken, int32_t *x, int32_t *y);
/// That number, computed without tokens.
int64_t maskedTargets(RandomKey key, int64_t count);

}  // namespace gptc
