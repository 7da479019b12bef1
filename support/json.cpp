#include "support/json.h"

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;

namespace gptc {

/// Whether more than `levels` objects and arrays enclose each other. A callback of the parser could tell too, but the
/// library then walks an array anew for each object in it: a vocabulary of 130,000 took seconds.
static bool isDeeperThan(int levels, std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i)
        i += text[i] == '\\';
    } else if (text[i] == '{' || text[i] == '[') {
      if (++depth > levels)
        return true;
    } else if (text[i] == '}' || text[i] == ']') {
      --depth;
    }
  return false;
}

template <class Json> Json parseJson(std::string_view text) {
  constexpr int levels = 64;
  if (isDeeperThan(levels, text))
    throw Json::other_error::create(501, "nested too deeply", nullptr);
  return Json::parse(text);
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
