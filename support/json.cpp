#include "support/json.h"

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace gptc {

template <class Json> Json parseJson(std::string_view text) {
  constexpr int levels = 64;
  return Json::parse(text, [](int depth, typename Json::parse_event_t, Json &) {
    if (depth > levels)
      throw Json::other_error::create(501, "nested too deeply", nullptr);
    return true;
  });
}

template <class Json> Json parseJsonOrDiscard(std::string_view text) {
  try {
    return parseJson<Json>(text);
  } catch (const typename Json::exception &) {
    return Json(Json::value_t::discarded);
  }
}

template nlohmann::json parseJson(std::string_view);
template nlohmann::ordered_json parseJson(std::string_view);
template nlohmann::json parseJsonOrDiscard(std::string_view);
template nlohmann::ordered_json parseJsonOrDiscard(std::string_view);

}  // namespace gptc
