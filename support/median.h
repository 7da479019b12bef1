// The median, for everything that prints measurements or chooses by them.
#pragma once

#include <algorithm>
#include <vector>

namespace gptc {

/// The median; of an even number of values the mean of the middle two; 0 if there are none.
template <typename T> double medianOf(std::vector<T> values) {
  if (values.empty())
    return 0;
  const auto middle = values.begin() + long(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const double above = double(*middle);
  return values.size() % 2 ? above : (double(*std::max_element(values.begin(), middle)) + above) / 2;
}

}  // namespace gptc
