// HTTP/1.1 (RFC 9112) for a server of JSON. The server is a plug-in, libgptc_http.so beside the programs, which stands
// on cpp-httplib and is loaded on demand.
#pragma once

#include "tools/serve/byte_budget.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gptc {

struct HttpRequest {
  std::string method, path;
  std::string body;  // whole
  std::string host, contentType, authorization;
};

/// Sends a piece of an answer's body. False if the client has gone, or does not take it in time.
using HttpWrite = std::function<bool(std::string_view)>;

struct HttpAnswer {
  int status = 200;
  std::string type = "application/json", body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::function<void(const HttpWrite &)> stream;  // if set, this writes the body
};

/// The client that awaits an answer. It has gone once it has closed its side of the connection.
class HttpClient {
public:
  virtual bool isGone() const = 0;

protected:
  ~HttpClient() = default;
};

/// A request that was answered.
struct HttpExchange {
  std::string client;  // its address
  std::string method, path;
  int status = 0;
  double seconds = 0;  // from the first byte of the request to the last of the answer
};

struct HttpOptions {
  std::string host = "127.0.0.1";  // name or address of an interface
  int port = 8080;                 // 0: one that is free
  /// Beyond so many connections at once, new ones are answered with status 503 and closed.
  int64_t mostConnections = 2048;
  size_t mostBody = size_t(4) << 20;  // bytes of a request
  /// Of bodies, and of answers that are larger than what a connection's buffer surely takes. A request or an answer
  /// that finds no room in it is answered with status 503. Must be there, and outlive the server.
  ByteBudget *bytes = nullptr;
  /// Seconds: between two requests of a connection; from the first byte of a request to the end of its headers; to the
  /// end of its body; for a piece of an answer to be taken.
  double idle = 30, headers = 10, body = 30, write = 30;
  /// The same as `write` from drain() on; and seconds from stop() to the end of the last answer.
  double lastWrite = 5;
  std::vector<std::pair<std::string, std::string>> routes;  // method and path of what there is
  /// Called in a thread for each connection. May throw.
  std::function<HttpAnswer(const HttpRequest &, HttpClient &)> handler;
  /// The answer to what never reaches the handler: a path that is unknown, a body that is too large; with status 503,
  /// what there is no room for now. The message is for people.
  std::function<HttpAnswer(int status, const std::string &message)> refuse;
  /// After each answer.
  std::function<void(const HttpExchange &)> log;
};

class HttpServer {
public:
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
  /// Answers until stop(), and then until the last answer is sent or cut off. False if it ended by itself, as when the
  /// whole system has no descriptors left; it waits for one of this process.
  virtual bool run() = 0;
  /// From any thread. The server is about to end: who takes nothing of an answer for HttpOptions::lastWrite seconds is
  /// cut off.
  virtual void drain() = 0;
  /// Requests that reached the handler before drain(), and whose answers are not sent yet.
  virtual int64_t answering() const = 0;
  /// From any thread, after drain(). No more requests are taken; connections between requests are closed; what is not
  /// sent of answers after HttpOptions::lastWrite seconds is cut off.
  virtual void stop() = 0;
};

/// Takes the port. Throws UserError(TargetUnavailable) if the plug-in or its library is missing, Usage if the port
/// cannot be had.
std::unique_ptr<HttpServer> listenHttp(const HttpOptions &options);

/// The plug-in's function. Null, with a reason, if the port cannot be had.
using MakeHttpServer = HttpServer *(const HttpOptions &, std::string &why);
#define GPTC_HTTP_ENTRY gptc_http_4
#define GPTC_HTTP_NAME_(entry) #entry
#define GPTC_HTTP_NAME(entry) GPTC_HTTP_NAME_(entry)
constexpr const char *httpEntry = GPTC_HTTP_NAME(GPTC_HTTP_ENTRY);

}  // namespace gptc
