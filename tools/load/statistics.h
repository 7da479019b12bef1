// Figures of a distribution.
#pragma once

#include <cstddef>
#include <vector>

namespace gptc::load {

/// The value below which `percent` (0 to 100) of the values lie: between the two nearest ranks, linearly. Of n values
/// in ascending order, v[0] to v[n - 1], it is the one at position percent / 100 * (n - 1), as numpy.percentile has it;
/// at 50 the median. `sorted` is ascending; 0 if it is empty.
double percentile(const std::vector<double> &sorted, double percent);

struct Distribution {
  explicit Distribution(std::vector<double> values);
  std::vector<double> sorted;
  double mean = 0;
  double at(double percent) const { return percentile(sorted, percent); }
  double most() const { return sorted.empty() ? 0 : sorted.back(); }
};

}  // namespace gptc::load
