// The server under test: its address, and a connection to it.
#pragma once

#include "tools/load/event_stream.h"
#include "tools/load/http_response.h"

#include <cstdint>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace gptc::load {

/// What `http://host:port/path` says.
struct Url {
  std::string host;  // without brackets
  int port = 80;
  std::string path;  // before /v1: "", or "/proxy"
  std::string str() const;
};
/// Reads "http://HOST[:PORT][/PATH]"; http:// may be left out, and /v1 stand at the end. Throws UserError(Usage) for
/// anything else, https included.
Url parseUrl(const std::string &text);

struct Server {
  Url url;
  std::string authorization;  // "Bearer KEY", or ""

  struct Address {
    sockaddr_storage bytes{};
    socklen_t size = 0;
  };
  std::vector<Address> addresses;  // of the host, to be tried in turn

  /// Looks the host up. Throws UserError(ServerFails) if it has no address.
  void resolve();
  /// The text of a request. `body`: "": GET.
  std::string request(const std::string &path, const std::string &body) const;
};

/// One request in a connection of its own, which never blocks. Throws Failure.
class Connection {
public:
  /// Begins to connect.
  Connection(const Server::Address &address, std::string request);
  ~Connection();
  Connection(const Connection &) = delete;
  int descriptor() const { return fd; }
  /// For poll and epoll: whether it waits to send rather than to receive.
  bool isSending() const { return !sent; }
  /// Goes on as far as it can. `body` gets pieces of the answer's body. True once the answer is complete.
  bool advance(HttpResponse::Body body);
  const HttpResponse &response() const { return answer; }

private:
  const int fd;
  std::string request;
  size_t done = 0;  // bytes of it that are sent
  bool connected = false, sent = false;
  int broken = 0;  // why the rest of it cannot be sent
  HttpResponse answer;
};

/// The answer to a request that is not measured.
struct Answer {
  int status = 0;
  std::string body;
};
/// Asks the server's addresses in turn, and keeps the first that lets itself be connected with as the only one. `most`:
/// bytes of the body. Throws Failure.
Answer ask(Server &server, const std::string &path, double timeout, size_t most);

}  // namespace gptc::load
