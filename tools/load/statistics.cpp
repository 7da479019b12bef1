#include "tools/load/statistics.h"

#include <algorithm>
#include <numeric>

namespace gptc::load {

double percentile(const std::vector<double> &sorted, double percent) {
  if (sorted.empty())
    return 0;
  const double at = std::clamp(percent, 0.0, 100.0) / 100 * double(sorted.size() - 1);
  const auto below = size_t(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - double(below)) * (sorted[above] - sorted[below]);
}

Distribution::Distribution(std::vector<double> values) : sorted(std::move(values)) {
  std::sort(sorted.begin(), sorted.end());
  if (!sorted.empty())
    mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / double(sorted.size());
}

}  // namespace gptc::load
