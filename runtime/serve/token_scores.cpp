#include "runtime/serve/token_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace gptc {

TokenScores scoresOf(llvm::ArrayRef<float> logits, int32_t id, int64_t count) {
  constexpr float never = -std::numeric_limits<float>::infinity();
  auto logit = [&](int64_t i) { return std::isnan(logits[i]) ? never : logits[i]; };
  float most = never;
  for (size_t i = 0; i < logits.size(); ++i)
    most = std::max(most, logit(i));
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    sum += std::exp(double(logit(i)) - most);
  auto logProbability = [&](int64_t i) { return float(double(logit(i)) - most - std::log(sum)); };

  TokenScores out{id, logProbability(id), {}};
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t kept = std::min<size_t>(count, order.size());
  std::partial_sort(order.begin(), order.begin() + long(kept), order.end(),
                    [&](int32_t a, int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
  order.resize(kept);
  if (kept && std::find(order.begin(), order.end(), id) == order.end())
    order.push_back(id);
  for (int32_t i : order)
    out.top.emplace_back(i, logProbability(i));
  return out;
}

}  // namespace gptc
