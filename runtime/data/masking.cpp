#include "runtime/data/masking.h"

namespace gptc {
namespace {

constexpr double kTarget = 0.15, kHidden = 0.8, kReplaced = 0.1;

// Random draws of a position, at index kDraws * position + draw.
enum Draw : uint64_t { isTarget, fate, replacement };
constexpr uint64_t kDraws = 4;
constexpr uint64_t kForced = ~uint64_t(0);  // an index that no position uses

bool chosen(RandomKey key, int64_t i) { return randomUniform(key, uint64_t(i) * kDraws + isTarget) < kTarget; }

}  // namespace

int64_t maskedTargets(RandomKey key, int64_t count) {
  int64_t targets = 0;
  for (int64_t i = 0; i < count; ++i)
    targets += chosen(key, i);
  return targets ? targets : 1;
}

int64_t maskTokens(RandomKey key, int64_t count, int32_t maskToken, int32_t *x, int32_t *y) {
  int64_t targets = 0;
  auto hide = [&](int64_t i) {
    ++targets;
    y[i] = x[i];
    const double u = randomUniform(key, uint64_t(i) * kDraws + fate);
    if (u < kHidden)
      x[i] = maskToken;
    else if (u < kHidden + kReplaced)
      x[i] = int32_t(randomBits(key, uint64_t(i) * kDraws + replacement) % uint32_t(maskToken));
  };
  for (int64_t i = 0; i < count; ++i) {
    y[i] = -1;
    if (chosen(key, i))
      hide(i);
  }
  if (!targets)
    hide(int64_t(randomBits(key, kForced) % uint64_t(count)));
  return targets;
}

}  // namespace gptc
