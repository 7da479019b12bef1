#include "tools/load/server.h"

#include "support/diagnostics.h"
#include "tools/load/failure.h"
#include "tools/load/plain_text.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

namespace gptc::load {

namespace {

[[noreturn]] void failConnection(int error) {
  switch (error) {
  case ECONNREFUSED:
    throw Failure{"connection refused", ""};
  case ECONNRESET:
  case EPIPE:
    throw Failure{"connection reset", ""};
  case ETIMEDOUT:
    throw Failure{"timed out", "connecting"};
  default:
    throw Failure{"no connection", std::strerror(error)};
  }
}

int newSocket(int family) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
  if (fd < 0)
    failConnection(errno);
  // A request is sent whole: nothing is to wait for more.
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

}  // namespace

std::string Url::str() const {
  const bool isV6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}{}", isV6 ? "[" : "", host, isV6 ? "]" : "", port, path);
}

Url parseUrl(const std::string &text) {
  auto refuse = [&](const char *why) {
    throw UserError(ErrorCode::Usage, fmt::format("{} is no address of a server: {}", plainText(text), why),
                    "write http://HOST:PORT, for example http://localhost:8080");
  };
  llvm::StringRef rest = text;
  if (rest.starts_with_insensitive("https://"))
    refuse("https is not spoken here");
  if (!rest.consume_front_insensitive("http://") && rest.contains("://"))
    refuse("only http is spoken here");
  for (char c : rest)
    if (c <= ' ' || c == 0x7f || c == '@' || c == '?' || c == '#')
      refuse("it has characters that do not belong there");
  llvm::StringRef place = rest.take_until([](char c) { return c == '/'; });
  llvm::StringRef path = rest.drop_front(place.size()).rtrim('/');
  path.consume_back("/v1");
  Url url;
  url.path = path.rtrim('/').str();
  llvm::StringRef port;
  if (place.consume_front("[")) {
    const auto [host, behind] = place.split(']');
    url.host = host.str();
    port = behind;
    if (!port.empty() && !port.consume_front(":"))
      refuse("something other than a port stands behind the bracket");
  } else {
    const auto [host, behind] = place.split(':');
    url.host = host.str();
    port = behind;
    if (place.ends_with(":"))
      refuse("it has no port behind the colon");
  }
  if (url.host.empty())
    refuse("it has no host");
  if (!port.empty() && (port.find_first_not_of("0123456789") != llvm::StringRef::npos ||
                        port.getAsInteger(10, url.port) || url.port < 1 || url.port > 65535))
    refuse("the port is no number from 1 to 65535");
  return url;
}

void Server::resolve() {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int problem = ::getaddrinfo(url.host.c_str(), std::to_string(url.port).c_str(), &hints, &found);
  if (problem != 0)
    throw UserError(ErrorCode::ServerFails, fmt::format("{}: {}", url.host, ::gai_strerror(problem)),
                    "correct the host's name");
  addresses.clear();
  for (const addrinfo *a = found; a; a = a->ai_next) {
    Address &address = addresses.emplace_back();
    std::memcpy(&address.bytes, a->ai_addr, a->ai_addrlen);
    address.size = a->ai_addrlen;
  }
  ::freeaddrinfo(found);
}

std::string Server::request(const std::string &path, const std::string &body) const {
  const std::string whole = url.str();  // "http://HOST:PORT/PATH"
  const size_t host = std::strlen("http://");
  std::string text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: gptc/" GPTC_VERSION "\r\n"
                                 "Connection: close\r\n",
                                 body.empty() ? "GET" : "POST", url.path, path,
                                 whole.substr(host, whole.size() - host - url.path.size()));
  if (!authorization.empty())
    text += "Authorization: " + authorization + "\r\n";
  if (!body.empty())
    text += fmt::format("Accept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
                        body.size());
  return text + "\r\n" + body;
}

Connection::Connection(const Server::Address &address, std::string request)
    : fd(newSocket(address.bytes.ss_family)), request(std::move(request)) {
  if (::connect(fd, reinterpret_cast<const sockaddr *>(&address.bytes), address.size) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    ::close(fd);  // there is no destructor for what is not constructed
    failConnection(error);
  }
}

Connection::~Connection() { ::close(fd); }

bool Connection::advance(HttpResponse::Body body) {
  if (!connected) {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0)
      failConnection(error);
    connected = true;
  }
  while (!sent) {
    const ssize_t n = ::send(fd, request.data() + done, request.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && errno == EAGAIN)
      return false;
    if (n < 0 && errno != EPIPE && errno != ECONNRESET)
      failConnection(errno);
    if (n < 0)  // who refuses a request may answer before reading all of it
      broken = errno;
    else
      done += size_t(n);
    sent = broken || done == request.size();
    if (sent)
      request = {};
  }
  char buffer[1 << 14];
  const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return false;
  if (n < 0)
    failConnection(errno);
  if (n == 0 && broken && answer.status() == 0)
    failConnection(broken);
  if (n == 0)
    answer.end();
  else
    answer.take({buffer, size_t(n)}, body);
  return answer.isComplete();
}

Answer ask(Server &server, const std::string &path, double timeout, size_t most) {
  using Clock = std::chrono::steady_clock;
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
  Failure last{"no connection", "the host has no address"};
  for (const Server::Address &address : server.addresses) {
    bool isReached = false;
    try {
      Connection c(address, server.request(path, ""));
      Answer answer;
      for (bool complete = false; !complete;) {
        pollfd p{c.descriptor(), short(c.isSending() ? POLLOUT : POLLIN), 0};
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
        if (left.count() <= 0)
          throw Failure{"timed out", fmt::format("no answer within {:g} s", timeout)};
        if (::poll(&p, 1, int(std::min<int64_t>(left.count(), 1 << 30))) <= 0)
          continue;
        complete = c.advance(
            [&](std::string_view piece) { answer.body += piece.substr(0, most - std::min(most, answer.body.size())); });
        isReached |= !c.isSending();
      }
      answer.status = c.response().status();
      server.addresses = {Server::Address(address)};
      return answer;
    } catch (const Failure &f) {
      if (isReached)
        throw;
      last = f;
    }
  }
  throw last;
}

}  // namespace gptc::load
