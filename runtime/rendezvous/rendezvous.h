// Lets the ranks of a job find each other: one small TCP server, and a client in each rank.
//
// The server keeps key-value pairs, counters and barriers, and detects a lost rank: its connection closes without
// leave(), it is silent for longer than allowed (as a stopped process is), it reports a failure, or the server's host
// reports one. The first failure is sent to every client. All waiting calls then fail; a rank that computes can read it
// without a system call.
//
//   launcher                                     rank r
//   RendezvousServer s({.token = newToken(),     RendezvousClient c({.host = ..., .port = ..., .token = ...,
//                       .world = 4});                                 .rank = r, .world = 4});
//   s.port(), s.fail({2, ..., "killed"})         c.set(k, v); c.get(k, timeout); c.barrier(...); c.leave();
//
// A connection must first present the token. Connections that do not, send malformed data or stall are dropped without
// delaying others. Messages, clients, and the memory for all values are bounded.
#pragma once

#include "support/diagnostics.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// Why a job cannot go on: the first failure of a rank.
struct RankFailure {
  int rank = -1;                           // -1: something that all ranks share
  ErrorCode code = ErrorCode::RankFailed;  // code for the other ranks: 06xx
  std::string text;                        // "rank 2 on host b is gone: its connection closed"
  ErrorCode cause = code;                  // code for the failed rank itself, such as DiskFull
  std::string help = {};                   // the failed rank's remedy; "" if it has none
};

/// 128 random bits as 32 hexadecimal digits. Knowing them admits a process to the job.
std::string newToken();

/// "10.0.0.1:4000", "[::1]:4000".
std::string hostAndPort(llvm::StringRef host, uint16_t port);

class RendezvousServer {
public:
  static constexpr size_t maxMessage = size_t(1) << 20;  // bytes of key and value in a message
  static constexpr size_t maxStored = size_t(64) << 20;  // bytes of all keys and values
  static constexpr int maxUnauthenticated = 64;          // connections that have not yet presented the token

  struct Options {
    std::string address = "127.0.0.1";  // interface to listen on; "0.0.0.0" or "::" for all
    uint16_t port = 0;                  // 0: any free port
    std::string token;
    int world = 1;
    std::chrono::milliseconds silence{10000};  // a rank that is silent for longer is lost
    std::chrono::milliseconds greeting{5000};  // for a connection to present the token
  };
  /// Listens and starts the server's thread. Throws UserError(RendezvousFailed) if it cannot.
  explicit RendezvousServer(const Options &options);
  /// Clients that have not left then see the rendezvous fail.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer &) = delete;

  uint16_t port() const;
  /// The server's host:port for clients on this machine.
  std::string where() const;
  /// Number of ranks that have joined, and of those that have called leave().
  int joined() const;
  int left() const;
  /// Reports the failure of a rank, for example because its process has ended. Only the first failure counts.
  void fail(const RankFailure &failure);
  std::optional<RankFailure> failure() const;
  /// The news that each rank sent with its last heartbeat, by rank.
  std::vector<std::string> news() const;
  /// Whether all ranks have joined, and each has either been sent the failure or gone.
  bool allKnowFailure() const;
  /// Why connections were dropped, with their addresses: the most recent ones.
  std::vector<std::string> dropped() const;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

/// One rank's connection; any thread may call it. No call waits longer than its time-out. Once a failure is known,
/// every call throws UserError with the failure's code instead of waiting. Values are bytes.
class RendezvousClient {
public:
  struct Options {
    std::string host;
    uint16_t port = 0;
    std::string token;
    int rank = 0, world = 1;
    std::chrono::milliseconds timeout{60000};  // for joining: the server may start later than its clients
    /// A server that is silent for longer counts as lost and ends the job. 0: only a closed connection does, for a
    /// launcher that may be stopped while its ranks go on.
    std::chrono::milliseconds silence{0};
    /// Text to send with every heartbeat, at most 1 KiB; the client's thread calls it. Heartbeats then come twice a
    /// second.
    std::function<std::string()> news = {};
  };
  /// Joins. Throws UserError(RendezvousFailed).
  explicit RendezvousClient(const Options &options);
  /// If leave() was not called, the other ranks are told that this one is lost.
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient &) = delete;

  const int rank, world;

  void set(llvm::StringRef key, llvm::StringRef value);
  /// Waits until the key is set. Throws UserError(CollectiveTimeout), naming the key.
  std::string get(llvm::StringRef key, std::chrono::milliseconds timeout);
  /// Adds to a counter, initially 0, and returns its new value.
  int64_t add(llvm::StringRef key, int64_t delta);
  /// Waits for all ranks. Throws UserError(CollectiveTimeout), naming the missing ranks. A name may be reused when all
  /// have passed.
  void barrier(llvm::StringRef name, std::chrono::milliseconds timeout);
  /// Ends this rank's part in good order.
  void leave();

  /// The first failure of the job; null if there is none. Costs one atomic load.
  const RankFailure *failure() const noexcept { return failed.load(std::memory_order_acquire); }
  /// Waits up to `wait` for a failure: the cause of another error may still be on its way.
  const RankFailure *failure(std::chrono::milliseconds wait) const;
  /// Reports to all ranks that this one cannot go on. Does not wait, and does nothing if a failure is known.
  void report(ErrorCode code, llvm::StringRef text, llvm::StringRef help = "");
  /// Calls `called` on another thread when a failure becomes known, immediately if one is. `called` must be short and
  /// must not use this client. It is not called after the returned object is destroyed.
  [[nodiscard]] std::shared_ptr<void> onFailure(std::function<void()> called);

  /// This machine's numeric address on the route to the server, by which others can reach this rank.
  const std::string &localAddress() const;
  /// The server's host:port.
  const std::string &where() const;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
  std::atomic<const RankFailure *> failed{nullptr};
};

/// This machine's name, for messages.
std::string hostName();

}  // namespace gptc
