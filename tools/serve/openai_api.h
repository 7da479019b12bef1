// The HTTP interface of OpenAI: what its parts have in common.
#pragma once

#include "support/json.h"
#include "tools/serve/http.h"
#include "tools/serve/metrics.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

namespace gptc {

struct ApiOptions {
  std::string model;              // its name
  std::vector<std::string> keys;  // of which a client must have one; none: anyone may ask
  bool onlyLocal = true;          // requests must call this machine by a name of the loopback interface
  ByteBudget *bytes = nullptr;    // of the server; must be there, and outlive the interface
};

/// Answers
///   GET  /v1/models             the one that is served
///   GET  /health                200 while requests are taken, else 503
///   GET  /metrics               for Prometheus, in its text format 0.0.4
/// and what a part adds. What is refused is answered with OpenAI's {"error": {message, type, param, code}}; what there
/// is no room for, with status 503, the code "overloaded" and Retry-After. A client that closes its connection is
/// served no further.
class OpenAiApi {
public:
  using Routes = std::vector<std::pair<std::string, std::string>>;  // method and path

  explicit OpenAiApi(ApiOptions options);
  virtual ~OpenAiApi() = default;
  OpenAiApi(const OpenAiApi &) = delete;

  Routes routes() const;
  /// From any thread.
  HttpAnswer answer(const HttpRequest &request, HttpClient &client);
  /// With status 503: there is no room for it.
  HttpAnswer refuse(int status, const std::string &message) const;
  void log(const HttpExchange &exchange);

  /// No more requests are taken.
  void drain() { isDraining = true; }

protected:
  /// Why a request is not answered.
  struct Refusal {
    int status = 400;
    std::string message, parameter, code;
    HttpAnswer answer() const;
  };
  /// What there is beside the common paths.
  virtual Routes ownRoutes() const = 0;
  /// Answers a POST to one of these, whose body is this object, without its "model". May throw Refusal and
  /// RequestError.
  virtual HttpAnswer post(const std::string &path, nlohmann::json object, HttpClient &client) = 0;
  /// The answer to GET /, which needs no key.
  virtual HttpAnswer page() const { return refuse(404, "there is no page"); }
  /// What /v1/models says of the model beside its name.
  virtual nlohmann::ordered_json description() const = 0;
  virtual std::string metricsText() const = 0;

  static std::string dumped(const nlohmann::ordered_json &object);
  static uint64_t randomBits();

  const ApiOptions common;
  Metrics metrics;

private:
  nlohmann::json objectOf(const HttpRequest &request) const;
  HttpAnswer models() const;
  void requireLocal(const HttpRequest &request) const;
  void requireKey(const HttpRequest &request) const;

  std::atomic<bool> isDraining = false;
  const int64_t started;  // seconds since 1970
};

}  // namespace gptc
