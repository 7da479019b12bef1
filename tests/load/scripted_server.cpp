#include "tests/load/scripted_server.h"

#include <cstdlib>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gptc::test {

Peer::~Peer() {
  if (fd >= 0)
    ::close(fd);
}

void Peer::send(const std::string &bytes) const {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n <= 0)
      return;
    done += size_t(n);
  }
}

std::string Peer::request() const {
  std::string text;
  char buffer[1 << 14];
  for (;;) {
    const size_t head = text.find("\r\n\r\n"), at = text.find("Content-Length: ");
    if (head != std::string::npos &&
        text.size() >= head + 4 + (at < head ? size_t(std::atoi(text.c_str() + at + 16)) : 0))
      return text;
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    if (n <= 0)
      return "";
    text.append(buffer, size_t(n));
  }
}

void Peer::reset() {
  const linger now{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  ::close(fd);
  fd = -1;
}

void Peer::awaitEnd() const {
  char buffer[256];
  while (::recv(fd, buffer, sizeof buffer, 0) > 0) {
  }
}

ScriptedServer::ScriptedServer(Script script, std::string models)
    : script(std::move(script)), models(std::move(models)),
      listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(listening, reinterpret_cast<sockaddr *>(&address), size) != 0 || ::listen(listening, 1024) != 0 ||
      ::getsockname(listening, reinterpret_cast<sockaddr *>(&address), &size) != 0)
    std::abort();
  boundPort = ntohs(address.sin_port);
  acceptor = std::thread([this] { accept(); });
}

ScriptedServer::~ScriptedServer() {
  ::shutdown(listening, SHUT_RDWR);  // ends the accept() that waits
  acceptor.join();
  for (std::thread &t : threads)
    t.join();
  ::close(listening);
}

void ScriptedServer::accept() {
  for (int fd; (fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;)
    threads.emplace_back([this, fd] { serve(fd); });
}

void ScriptedServer::serve(int fd) {
  Peer peer(fd);
  const std::string request = peer.request();
  if (request.empty())
    return;
  {
    const std::lock_guard lock(mutex);
    seen.push_back(request);
  }
  if (request.rfind("GET ", 0) == 0)
    peer.send(models);
  else
    script(request.substr(request.find("\r\n\r\n") + 4), completions++, peer);
}

std::vector<std::string> ScriptedServer::requests() {
  const std::lock_guard lock(mutex);
  return seen;
}

std::string ScriptedServer::modelsAnswer() { return answerOf(200, R"({"data": [{"id": "scripted"}]})"); }

std::string ScriptedServer::answerOf(int status, const std::string &body, const std::string &type) {
  return fmt::format("HTTP/1.1 {} Said\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n{}", status, type, body.size(),
                     body);
}

std::string ScriptedServer::streamOf(const std::vector<std::string> &events) {
  std::string text = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                     "Transfer-Encoding: chunked\r\n\r\n";
  for (const std::string &e : events) {
    const std::string chunk = "data: " + e + "\n\n";
    text += fmt::format("{:x}\r\n{}\r\n", chunk.size(), chunk);
  }
  return text + "0\r\n\r\n";
}

std::vector<std::string> ScriptedServer::completion(int tokens, bool usage, int promptTokens) {
  std::vector<std::string> all;
  for (int i = 0; i < tokens; ++i)
    all.push_back(R"({"choices": [{"index": 0, "text": "a", "finish_reason": null}]})");
  all.push_back(R"({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})");
  if (usage)
    all.push_back(fmt::format(R"({{"choices": [], "usage": {{"prompt_tokens": {}, "completion_tokens": {}}}}})",
                              promptTokens, tokens));
  all.push_back("[DONE]");
  return all;
}

}  // namespace gptc::test
