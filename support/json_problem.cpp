#include "support/json_problem.h"

#include "support/diagnostics.h"

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

nlohmann::json objectInFile(std::string_view text, const std::string &file, const std::string &help) {
  auto content = parseJsonOrDiscard<nlohmann::json>(text);
  if (content.is_object())
    return content;
  const std::string half = content.is_discarded() ? halfCharacterIn(text) : "";
  throw UserError(ErrorCode::CheckpointDamaged,
                  fmt::format("{}: {}", file, half.empty() ? "it is no JSON object" : half), help);
}

std::string problemOf(const nlohmann::json::exception &e, std::string_view text) {
  if (const auto *unread = dynamic_cast<const nlohmann::json::parse_error *>(&e)) {
    const std::string_view read = text.substr(0, std::min(unread->byte, text.size()));
    return fmt::format("it is no JSON: line {}", 1 + std::count(read.begin(), read.end(), '\n'));
  }
  if (dynamic_cast<const nlohmann::json::other_error *>(&e))
    return "it is nested too deeply";  // as parseJson says
  const std::string_view words = e.what();
  const size_t begin = words.find("key '"), end = words.rfind("' not found");
  if (begin != words.npos && end != words.npos && begin + 5 <= end)
    return fmt::format("it lacks \"{}\"", words.substr(begin + 5, end - begin - 5));
  return "a value is not of the type that belongs there";
}

std::string shown(const nlohmann::json &value) {
  constexpr size_t most = 200;
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() <= most)
    return text;
  size_t end = most;
  while (end > 0 && (uint8_t(text[end]) & 0xc0) == 0x80)  // within a character
    --end;
  return text.substr(0, end) + "...";
}

}  // namespace gptc
