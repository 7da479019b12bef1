// The limit of parallel.gradient_rank, which its key, its fact and the op that needs it share.
#pragma once

#include <cstdint>

namespace gptc {

/// The most rows of a factor: `orthogonalize` computes each of them within each row of a kernel (ir/ops/factors.cpp).
inline constexpr int64_t kMostGradientRank = 16;

}  // namespace gptc
