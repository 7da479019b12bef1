#include "tests/support/http_client.h"

#include <cstdlib>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace gptc::test {

std::string HttpReply::error() const {
  const nlohmann::json object = json();
  const nlohmann::json &message = part(part(object, "error"), "message");
  return message.is_string() ? message.get<std::string>() : "";
}

HttpConnection::HttpConnection(int port) : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(uint16_t(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address)) != 0)
    ::close(std::exchange(fd, -1));
}

HttpConnection::HttpConnection(HttpConnection &&other) noexcept
    : fd(std::exchange(other.fd, -1)), received(std::move(other.received)) {}

HttpConnection::~HttpConnection() {
  if (fd >= 0)
    ::close(fd);
}

bool HttpConnection::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0)
      return false;
    bytes.remove_prefix(size_t(n));
  }
  return true;
}

void HttpConnection::endSending() { ::shutdown(fd, SHUT_WR); }

bool HttpConnection::receiveMore() {
  char buffer[1 << 14];
  const ssize_t n = ::recv(fd, buffer, sizeof(buffer), 0);
  if (n > 0)
    received.append(buffer, size_t(n));
  return n > 0;
}

std::string HttpConnection::receive(std::string_view until) {
  size_t found = std::string::npos;
  while ((until.empty() || (found = received.find(until)) == std::string::npos) && receiveMore()) {
  }
  const size_t end = found == std::string::npos ? received.size() : found + until.size();
  std::string out = received.substr(0, end);
  received.erase(0, end);
  return out;
}

HttpReply HttpConnection::reply() {
  HttpReply r;
  do
    r.head = receive("\r\n\r\n");
  while (r.head.rfind("HTTP/1.1 100", 0) == 0);
  if (r.head.size() < 12)
    return r;
  r.status = std::atoi(r.head.c_str() + 9);
  if (const size_t at = r.head.find("Content-Length: "); at != std::string::npos) {
    const size_t size = std::strtoull(r.head.c_str() + at + 16, nullptr, 10);
    while (received.size() < size && receiveMore()) {
    }
    r.body = received.substr(0, size);
    received.erase(0, size);
  } else if (r.head.find("Transfer-Encoding: chunked") != std::string::npos) {
    for (;;) {
      const std::string line = receive("\r\n");
      const size_t size = std::strtoull(line.c_str(), nullptr, 16);
      while (received.size() < size + 2 && receiveMore()) {
      }
      r.body += received.substr(0, size);
      received.erase(0, size + 2);
      if (size == 0)
        break;
    }
  }
  return r;
}

std::string httpText(const std::string &path, const std::string &body, const std::string &moreHeaders) {
  std::string text = (body.empty() ? "GET " : "POST ") + path + " HTTP/1.1\r\nHost: localhost\r\n" + moreHeaders;
  if (!body.empty())
    text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "\r\n" + body;
}

HttpReply ask(int port, const std::string &path, const std::string &body, const std::string &moreHeaders) {
  HttpConnection c(port);
  if (!c.isOpen() || !c.send(httpText(path, body, moreHeaders)))
    return {};
  return c.reply();
}

}  // namespace gptc::test
