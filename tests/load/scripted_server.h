// A server that answers with what a test writes, byte for byte.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace gptc::test {

/// A connection as the server sees it; closed when the script returns.
class Peer {
public:
  explicit Peer(int fd) : fd(fd) {}
  ~Peer();
  Peer(const Peer &) = delete;
  void send(const std::string &bytes) const;
  /// A request, with its body; "" if the client has closed instead.
  std::string request() const;
  /// Ends the connection as a program that dies with unread bytes does, by RST.
  void reset();
  /// Waits until the client closes.
  void awaitEnd() const;

private:
  int fd;
};

class ScriptedServer {
public:
  /// Answers a request of /v1/completions, in a thread of its own. `body`: its JSON; `number`: of its connection, from
  /// 0.
  using Script = std::function<void(const std::string &body, int number, Peer &peer)>;

  /// Listens on a free port. `models`: the whole answer to /v1/models.
  explicit ScriptedServer(Script script, std::string models = modelsAnswer());
  /// Waits for the scripts that run.
  ~ScriptedServer();
  ScriptedServer(const ScriptedServer &) = delete;
  int port() const { return boundPort; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(boundPort); }
  /// The requests so far, heads included.
  std::vector<std::string> requests();

  /// Of /v1/models, with the model "scripted".
  static std::string modelsAnswer();
  static std::string answerOf(int status, const std::string &body, const std::string &type = "application/json");
  /// An answer with these events, each in a chunk.
  static std::string streamOf(const std::vector<std::string> &events);
  /// The events of a completion of so many tokens, [DONE] included. `usage`: with an event that counts them, and
  /// `promptTokens`.
  static std::vector<std::string> completion(int tokens, bool usage = true, int promptTokens = 5);

private:
  void accept();
  void serve(int fd);

  const Script script;
  const std::string models;
  int listening, boundPort = 0;
  std::atomic<int> completions = 0;
  std::mutex mutex;
  std::vector<std::string> seen;
  std::vector<std::thread> threads;
  std::thread acceptor;
};

}  // namespace gptc::test
