#include "tools/serve/openai_api.h"

#include "support/diagnostics.h"
#include "tools/serve/completion_request.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSwitch.h"

#include <ctime>
#include <new>
#include <random>

namespace gptc {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

/// Takes as long for any two texts of equal length.
bool equalInConstantTime(const std::string &a, const std::string &b) {
  unsigned char differ = a.size() != b.size();
  for (size_t i = 0; i < a.size(); ++i)
    differ |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  return !differ;
}

/// Without a port.
llvm::StringRef nameOfHost(llvm::StringRef host) {
  if (host.starts_with("["))
    return host.take_front(host.find(']') + 1);
  return host.take_front(host.find(':'));
}

}  // namespace

std::string OpenAiApi::dumped(const ordered_json &object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

uint64_t OpenAiApi::randomBits() {
  thread_local std::mt19937_64 bits{[] {
    std::random_device device;
    return (uint64_t(device()) << 32) ^ device();
  }()};
  return bits();
}

HttpAnswer OpenAiApi::Refusal::answer() const {
  const char *const type = status == 401   ? "authentication_error"
                           : status == 429 ? "rate_limit_error"
                           : status >= 500 ? "server_error"
                                           : "invalid_request_error";
  auto orNull = [](const std::string &text) { return text.empty() ? ordered_json() : ordered_json(text); };
  HttpAnswer a{
      .status = status,
      .body = dumped({{"error",
                       {{"message", message}, {"type", type}, {"param", orNull(parameter)}, {"code", orNull(code)}}}}) +
              "\n"};
  if (status == 503)
    a.headers = {{"Retry-After", "1"}};
  return a;
}

OpenAiApi::OpenAiApi(ApiOptions options) : common(std::move(options)), started(std::time(nullptr)) {}

OpenAiApi::Routes OpenAiApi::routes() const {
  Routes all = ownRoutes();
  all.insert(all.end(), {{"GET", "/v1/models"}, {"GET", "/health"}, {"GET", "/metrics"}});
  return all;
}

HttpAnswer OpenAiApi::refuse(int status, const std::string &message) const {
  return Refusal{.status = status, .message = message, .code = status == 503 ? "overloaded" : ""}.answer();
}

void OpenAiApi::log(const HttpExchange &e) {
  const bool isKnown = llvm::any_of(routes(), [&](const auto &route) { return route.second == e.path; });
  metrics.countRequest(isKnown ? e.path : "", e.status);
}

HttpAnswer OpenAiApi::answer(const HttpRequest &request, HttpClient &client) {
  try {
    if (request.path == "/health")
      return isDraining ? Refusal{.status = 503, .message = "the server is about to end"}.answer()
                        : HttpAnswer{.body = "{\"status\":\"ok\"}\n"};
    requireLocal(request);
    if (request.path == "/")  // asks for a key itself
      return page();
    requireKey(request);
    if (request.path == "/metrics")
      return {.type = "text/plain; version=0.0.4", .body = metricsText()};
    if (request.path == "/v1/models")
      return models();
    return post(request.path, objectOf(request), client);
  } catch (const Refusal &refusal) {
    return refusal.answer();
  } catch (const RequestError &e) {
    const std::string message = e.parameter.empty() ? e.message : e.parameter + ": " + e.message;
    return Refusal{.message = message, .parameter = e.parameter}.answer();
  } catch (const std::bad_alloc &) {
    return Refusal{.status = 503, .message = "not enough memory for this request now"}.answer();
  }
}

/// The body of a request.
json OpenAiApi::objectOf(const HttpRequest &request) const {
  if (isDraining)
    throw Refusal{.status = 503, .message = "the server is about to end"};
  // What a page of another site may send without asking is not JSON by its type.
  if (!llvm::StringRef(request.contentType).starts_with_insensitive("application/json"))
    throw Refusal{.status = 415, .message = "the body must be JSON, with Content-Type: application/json"};
  json object = parseJsonOrDiscard(request.body);
  if (object.is_discarded())
    throw Refusal{.message = "the body is no JSON, or deeper than 64 levels"};
  if (!object.is_object())
    throw Refusal{.message = "the body is no object"};
  if (const json model = part(object, "model"); !model.is_null() && model != common.model)
    throw Refusal{.status = 404,
                  .message = fmt::format("there is no model {}; here is {}", model.dump(-1, ' ', true), common.model),
                  .parameter = "model",
                  .code = "model_not_found"};
  object.erase("model");
  return object;
}

void OpenAiApi::requireLocal(const HttpRequest &request) const {
  // A page of the web whose name was made to lead here must not be answered (DNS rebinding).
  const llvm::StringRef host = nameOfHost(request.host);
  const bool isLocal = llvm::StringSwitch<bool>(host).CasesLower("", "localhost", "[::1]", true).Default(false) ||
                       (host.starts_with("127.") && host.find_first_not_of("0123456789.") == llvm::StringRef::npos);
  if (common.onlyLocal && !isLocal)
    throw Refusal{.status = 403,
                  .message = "only requests to localhost are answered; gptrun serve --host opens it to others"};
}

void OpenAiApi::requireKey(const HttpRequest &request) const {
  if (common.keys.empty())
    return;
  const std::string prefix = "Bearer ";
  const bool isBearer = llvm::StringRef(request.authorization).starts_with(prefix);
  const std::string key = isBearer ? request.authorization.substr(prefix.size()) : "";
  bool isKnown = false;
  for (const std::string &known : common.keys)
    isKnown |= equalInConstantTime(key, known);
  if (!isKnown)
    throw Refusal{
        .status = 401, .message = "an API key is needed: Authorization: Bearer KEY", .code = "invalid_api_key"};
}

HttpAnswer OpenAiApi::models() const {
  ordered_json model = {{"id", common.model}, {"object", "model"}, {"created", started}, {"owned_by", "gptc"}};
  model.update(description());
  return {.body = dumped({{"object", "list"}, {"data", ordered_json::array({model})}}) + "\n"};
}

}  // namespace gptc
