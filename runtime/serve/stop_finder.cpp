#include "runtime/serve/stop_finder.h"

#include <algorithm>
#include <utility>

namespace gptc {

std::string StopFinder::push(std::string_view piece) {
  if (isFound)
    return "";
  pending += piece;
  // The one that is complete first, so that the pieces do not matter; of two that end together the longer.
  size_t first = std::string::npos, end = std::string::npos;
  for (const std::string &stop : stops)
    if (const size_t at = pending.find(stop); at != std::string::npos)
      if (const size_t ends = at + stop.size(); ends < end || (ends == end && at < first)) {
        first = at;
        end = ends;
      }
  if (first != std::string::npos) {
    isFound = true;
    pending.resize(first);
    return std::exchange(pending, "");
  }
  // The longest end of the text with which a stop begins. A stop is found as soon as it is complete, so it is shorter
  // than the longest stop.
  size_t held = 0;
  for (const std::string &stop : stops)
    for (size_t n = std::min(stop.size() - 1, pending.size()); n > held; --n)
      if (std::string_view(pending).substr(pending.size() - n) == std::string_view(stop).substr(0, n))
        held = n;
  std::string out = pending.substr(0, pending.size() - held);
  pending.erase(0, out.size());
  return out;
}

std::string StopFinder::finish() { return std::exchange(pending, ""); }

}  // namespace gptc
