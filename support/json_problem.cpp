#include "support/json_problem.h"

#include "support/json.h"

#include <fmt/format.h>

#include <algorithm>

namespace gptc {

std::string halfCharacterIn(std::string_view text) {
  try {
    parseJson(text);
  } catch (const nlohmann::json::parse_error &e) {
    if (std::string_view(e.what()).find(": surrogate U+") == std::string_view::npos)
      return "";
    const std::string_view read = text.substr(0, std::min(e.byte, text.size()));
    const size_t begin = read.rfind('\n') + 1;  // 0 on the first line
    const bool isOneLine = text.find('\n') == std::string_view::npos;
    return fmt::format("{}column {}: a \\u escape is half of a character (a surrogate without its other one)",
                       isOneLine ? "" : fmt::format("line {}, ", 1 + std::count(read.begin(), read.end(), '\n')),
                       read.size() - begin);
  } catch (const nlohmann::json::exception &) {
  }
  return "";
}

}  // namespace gptc
