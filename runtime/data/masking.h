// Masked-token loss (Devlin et al. 2019, "BERT"): what an encoder is trained on.
//
// Each position of a sequence is a target with probability 15%. Of the targets 80% are hidden behind [MASK], 10% behind
// a random token, and 10% stay as they are. What happens to a position is a pure function of the sequence's key and the
// position. A sequence without any target by these rules gets one, so that no batch is without.
#pragma once

#include "ir/random.h"

#include <cstdint>

namespace gptc {

/// Hides targets among the tokens x[0..count): y is the token that stood at a target, and -1 elsewhere. Text holds ids
/// below maskToken only. Returns the number of targets, at least 1 (count > 0).
int64_t maskTokens(RandomKey key, int64_t count, int32_t maskToken, int32_t *x, int32_t *y);
/// The same number, without tokens.
int64_t maskedTargets(RandomKey key, int64_t count);

}  // namespace gptc
