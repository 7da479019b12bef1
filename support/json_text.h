// JSON from files that anybody may have written.
#pragma once

#include <nlohmann/json.hpp>

#include <string_view>

namespace gptc {

/// Parses JSON of at most 64 levels; nothing that we read has more than six. Whoever walks through a value of a million
/// levels runs out of stack. Throws nlohmann::json::exception, for a deeper one too.
template <class Json = nlohmann::json> Json parseJson(std::string_view text) {
  constexpr int levels = 64;
  return Json::parse(text, [](int depth, typename Json::parse_event_t, Json &) {
    if (depth > levels)
      throw Json::other_error::create(501, "nested too deeply", nullptr);
    return true;
  });
}

/// The same; what cannot be parsed is a discarded value, which is of no type.
template <class Json = nlohmann::json> Json parseJsonOrDiscard(std::string_view text) {
  try {
    return parseJson<Json>(text);
  } catch (const typename Json::exception &) {
    return Json(Json::value_t::discarded);
  }
}

}  // namespace gptc
