// A client of HTTP/1.1 for tests of the server: whole requests, and single bytes where a client behaves badly.
#pragma once

#include "support/json.h"

#include <string>
#include <string_view>

namespace gptc::test {

struct HttpReply {
  int status = 0;    // 0: the connection ended before an answer
  std::string head;  // status line and headers
  std::string body;  // of chunks, what they hold
  nlohmann::json json() const { return gptc::parseJsonOrDiscard(body); }
  /// OpenAI's error: its message; "" if it is none.
  std::string error() const;
};

/// A connection to a port of 127.0.0.1.
class HttpConnection {
public:
  explicit HttpConnection(int port);
  ~HttpConnection();
  HttpConnection(HttpConnection &&other) noexcept;
  HttpConnection(const HttpConnection &) = delete;
  bool isOpen() const { return fd >= 0; }
  /// False if the other side has closed.
  bool send(std::string_view bytes);
  /// Ends the sending side.
  void endSending();
  /// What comes until `until` has come; until the end, if it is empty.
  std::string receive(std::string_view until = "");
  /// The answer to a request that was sent.
  HttpReply reply();

private:
  bool receiveMore();
  int fd;
  std::string received;
};

/// A request's text. `body` empty: GET.
std::string httpText(const std::string &path, const std::string &body = "", const std::string &moreHeaders = "");
/// Sends it in a connection of its own and awaits the answer.
HttpReply ask(int port, const std::string &path, const std::string &body = "", const std::string &moreHeaders = "");

}  // namespace gptc::test
