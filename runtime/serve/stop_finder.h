// Texts at which an answer ends.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gptc {

/// Finds which of several texts is complete first in a text that comes in pieces, and holds back what may be the start
/// of one.
class StopFinder {
public:
  /// None of the texts is empty.
  explicit StopFinder(std::vector<std::string> stops) : stops(std::move(stops)) {}
  /// Returns the text that is certain to stand before the stop. Once one is found, "".
  std::string push(std::string_view piece);
  bool found() const { return isFound; }
  /// Returns what was held back, as no more comes.
  std::string finish();

private:
  std::vector<std::string> stops;
  std::string pending;
  bool isFound = false;
};

}  // namespace gptc
