// JSON by nlohmann's library, whose classes are compiled once, in json.cpp. Files include this header instead of
// <nlohmann/json.hpp>, and parse with the functions below, so that they compile in half the time.
#pragma once

#include <nlohmann/json.hpp>

#include <cmath>
#include <string_view>

extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace gptc {

/// Parses JSON of at most 64 levels: our files have at most six, and code that walks a value of a million levels runs
/// out of stack. Json: nlohmann::json, or nlohmann::ordered_json, which keeps the order of members. Throws
/// Json::exception for invalid text and for deeper values.
template <class Json = nlohmann::json> Json parseJson(std::string_view text);

/// The same, but gives a discarded value, which is of no type, instead of an exception.
template <class Json = nlohmann::json> Json parseJsonOrDiscard(std::string_view text);

extern template nlohmann::json parseJson(std::string_view);
extern template nlohmann::ordered_json parseJson(std::string_view);
extern template nlohmann::json parseJsonOrDiscard(std::string_view);
extern template nlohmann::ordered_json parseJsonOrDiscard(std::string_view);

/// A member of an object; null if there is none, or `of` is no object.
template <class Json> const Json &part(const Json &of, const char *name) {
  static const Json absent;
  const auto it = of.find(name);  // end() if `of` is no object
  return it == of.end() ? absent : *it;
}

/// A number, or null for infinities and NaN, which JSON does not have.
template <class Json = nlohmann::json> Json finiteOrNull(double number) {
  return std::isfinite(number) ? Json(number) : Json();
}

}  // namespace gptc
