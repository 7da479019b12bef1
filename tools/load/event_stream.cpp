#include "tools/load/event_stream.h"

#include "tools/load/failure.h"

#include <fmt/format.h>

#include <algorithm>

namespace gptc::load {

void EventStream::take(std::string_view bytes, Event event) {
  while (!bytes.empty()) {
    if (std::exchange(afterReturn, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const auto isEnd = [](char c) { return c == '\r' || c == '\n'; };
    const auto end = size_t(std::find_if(bytes.begin(), bytes.end(), isEnd) - bytes.begin());
    line.append(bytes.substr(0, end));
    if (line.size() + data.size() > mostData)
      throw malformed(fmt::format("an event of more than {} MiB", mostData >> 20));
    if (end == bytes.size())
      return;
    afterReturn = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    endLine(event);
  }
}

void EventStream::endLine(Event event) {
  std::string_view l = line;
  if (std::exchange(isFirstLine, false) && l.substr(0, 3) == "\xef\xbb\xbf")
    l.remove_prefix(3);
  if (l.empty()) {
    if (hasData)
      event(data);
    data.clear();
    hasData = false;
  } else if (const size_t colon = l.find(':'); l.substr(0, colon) == "data") {
    std::string_view value = colon == std::string_view::npos ? std::string_view() : l.substr(colon + 1);
    if (!value.empty() && value.front() == ' ')
      value.remove_prefix(1);
    if (std::exchange(hasData, true))
      data += '\n';
    data += value;
  }
  line.clear();
}

}  // namespace gptc::load
