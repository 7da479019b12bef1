// The median of measurements, one way for all that print or choose by it.
#pragma once

#include <algorithm>
#include <vector>

namespace gptc {

/// The middle one, of an even number the mean of the two in the middle; 0 of none.
template <typename T> double medianOf(std::vector<T> values) {
  if (values.empty())
    return 0;
  const auto middle = values.begin() + long(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const double above = double(*middle);
  return values.size() % 2 ? above : (double(*std::max_element(values.begin(), middle)) + above) / 2;
}

}  // namespace gptc
