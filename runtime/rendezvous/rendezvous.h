// How the ranks of a job find each other: one small TCP server, and a client in each rank.
//
// The server keeps pairs of key and value, counters and barriers, and notices when a rank is lost: its connection
// closes without leave(), it is silent for longer than the heartbeat allows (a stopped process is), it reports a
// failure, or whoever hosts the server says so. The first failure is sent to every client, which then fails whatever
// waits; a rank that computes reads it without any call to the system.
//
//   launcher                                     rank r
//   RendezvousServer s({.token = newToken(),     RendezvousClient c({.host = ..., .port = ..., .token = ...,
//                       .world = 4});                                 .rank = r, .world = 4});
//   s.port(), s.fail({2, ..., "killed"})         c.set(k, v); c.get(k, timeout); c.barrier(...); c.leave();
//
// A connection must present the token first. What does not, sends something else or stalls is dropped, and holds up
// nobody; messages, clients, and the memory of all values together are bounded.
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

/// Why a job cannot go on: what is known of the first rank that failed.
struct RankFailure {
  int rank = -1;                           // -1: none of the ranks, but what they share
  ErrorCode code = ErrorCode::RankFailed;  // what it is to the other ranks: 06xx
  std::string text;                        // "rank 2 on host b is gone: its connection closed"
  ErrorCode cause = code;                  // what it was to that rank itself: DiskFull, for example
  std::string help = {};                   // what mends it, as that rank says; "" where it does not
};

/// 128 random bits as 32 hexadecimal digits: who has them belongs to the job.
std::string newToken();

/// "10.0.0.1:4000", "[::1]:4000".
std::string hostAndPort(llvm::StringRef host, uint16_t port);

class RendezvousServer {
public:
  static constexpr size_t maxMessage = size_t(1) << 20;  // key and value of one message
  static constexpr size_t maxStored = size_t(64) << 20;  // all keys and values
  static constexpr int maxStrangers = 64;                // connections that have not presented the token yet

  struct Options {
    std::string address = "127.0.0.1";  // of the interface to listen on; "0.0.0.0" or "::": all of them
    uint16_t port = 0;                  // 0: any that is free
    std::string token;
    int world = 1;
    std::chrono::milliseconds silence{10000};  // a rank that is silent for longer is lost
    std::chrono::milliseconds greeting{5000};  // for a connection to present the token
  };
  /// Listens, and starts its thread. UserError(RendezvousFailed) where it cannot.
  explicit RendezvousServer(const Options &options);
  /// Clients that have not left see the rendezvous fail.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer &) = delete;

  uint16_t port() const;
  /// host:port as clients on this machine reach it.
  std::string where() const;
  /// Ranks that have come, and those of them that have left in good order.
  int joined() const;
  int left() const;
  /// Says that a rank has failed, for example because its process has ended. Only the first failure counts.
  void fail(const RankFailure &failure);
  std::optional<RankFailure> failure() const;
  /// What each rank has sent with its last heartbeat, by rank.
  std::vector<std::string> news() const;
  /// Whether all ranks of the job have come, and each of them has been sent the failure or is gone.
  bool allKnowFailure() const;
  /// Why connections were dropped, with their addresses: the last few.
  std::vector<std::string> dropped() const;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

/// One rank's connection. Any thread may call it. What waits here, waits no longer than its time-out, and not at all
/// once a failure is known: then it throws UserError(code of the failure). Values are bytes.
class RendezvousClient {
public:
  struct Options {
    std::string host;
    uint16_t port = 0;
    std::string token;
    int rank = 0, world = 1;
    std::chrono::milliseconds timeout{60000};  // to join: the server may start later than its clients
    /// A server that is silent for longer is lost, and with it the job; 0: only one whose connection closes. That is
    /// for a launcher, which may be stopped while its ranks go on.
    std::chrono::milliseconds silence{0};
    /// Sent with every heartbeat, which then come twice a second; called by the client's thread. At most 1 KiB.
    std::function<std::string()> news = {};
  };
  explicit RendezvousClient(const Options &options);
  /// Without leave() before, the other ranks hear that this one is lost.
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient &) = delete;

  const int rank, world;

  void set(llvm::StringRef key, llvm::StringRef value);
  /// Waits for someone to set the key. UserError(CollectiveTimeout) that names it.
  std::string get(llvm::StringRef key, std::chrono::milliseconds timeout);
  /// Adds to a counter, which begins at 0, and returns what it is now.
  int64_t add(llvm::StringRef key, int64_t delta);
  /// Waits for all ranks of the job. UserError(CollectiveTimeout) that names those that did not come. A name may be
  /// used again when all have passed.
  void barrier(llvm::StringRef name, std::chrono::milliseconds timeout);
  /// Leaves in good order.
  void leave();

  /// The first failure of the job; null while all is well. Costs no more than reading a number.
  const RankFailure *failure() const noexcept { return failed.load(std::memory_order_acquire); }
  /// Waits a little for it, where something else has failed and may have a cause that is on its way.
  const RankFailure *failure(std::chrono::milliseconds wait) const;
  /// Tells all ranks that this one cannot go on. Does not wait, and does nothing where a failure is known.
  void report(ErrorCode code, llvm::StringRef text, llvm::StringRef help = "");
  /// Calls `called` on another thread when a failure becomes known, at once where one is. It must be short, must not
  /// call this client and is not called any more once the returned object is gone.
  [[nodiscard]] std::shared_ptr<void> onFailure(std::function<void()> called);

  /// The address of this machine by which it reaches the server, as a number: others reach this rank by it.
  const std::string &localAddress() const;
  /// host:port of the server.
  const std::string &where() const;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
  std::atomic<const RankFailure *> failed{nullptr};
};

/// The name of this machine, for messages.
std::string hostName();

}  // namespace gptc
