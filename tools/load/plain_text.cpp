#include "tools/load/plain_text.h"

namespace gptc::load {

using nlohmann::json;

std::string plainText(std::string_view text) {
  constexpr size_t most = 200;
  std::string out(text.substr(0, most));
  for (char &c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      c = ' ';
  // What is no UTF-8, or was cut, becomes U+FFFD by nlohmann's rules.
  const std::string quoted = json(out).dump(-1, ' ', false, json::error_handler_t::replace);
  out = json::parse(quoted).get<std::string>();
  // U+0080 to U+009F are control characters too.
  for (size_t at = 0; (at = out.find('\xc2', at)) != std::string::npos; ++at)
    if (static_cast<unsigned char>(out[at + 1]) < 0xa0)
      out.replace(at, 2, " ");
  const size_t first = out.find_first_not_of(' '), last = out.find_last_not_of(' ');
  out = first == std::string::npos ? "" : out.substr(first, last - first + 1);
  return text.size() > most ? out + "..." : out;
}

std::string messageOf(const json &answer) {
  const json &error = part(answer, "error");
  for (const json *m : {&part(error, "message"), &error, &part(answer, "message"), &part(answer, "detail")})
    if (m->is_string())
      return plainText(m->get_ref<const std::string &>());
  return plainText(answer.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace gptc::load
