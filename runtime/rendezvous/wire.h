// Sockets and messages, shared by the rendezvous' server and client; only for this folder. A message is its length (4
// bytes, little endian) followed by that many bytes, of which the first is its kind.
#pragma once

#include "runtime/rendezvous/rendezvous.h"

#include "llvm/ADT/StringRef.h"

#include <cstring>
#include <string>

namespace gptc::wire {

enum class Kind : uint8_t {
  // to the server
  hello = 1,  // magic, rank, world, token, host
  set,        // id, key, value
  get,        // id, key, milliseconds
  add,        // id, key, delta
  barrier,    // id, name, milliseconds
  beat,       // news; the server echoes it without them
  report,     // code, text, help
  leave,      // id
  // to a client
  welcome = 101,  // milliseconds between heartbeats
  refused,        // text
  reply,          // id, Status, value
  failure,        // rank, code, cause, text, help
};
enum class Status : uint8_t { ok, late, wrong };

inline constexpr uint32_t magic = 0x47505444;  // also the version of all messages but hello and refused
inline constexpr size_t maxKey = 1024, maxNews = 1024;
inline constexpr size_t maxFrame = RendezvousServer::maxMessage + maxKey + 64;
inline constexpr size_t maxHello = 512;

class Writer {
public:
  explicit Writer(Kind k) : text(4, '\0') { text += char(k); }
  template <class T> Writer &number(T v) {
    char bytes[sizeof v];
    std::memcpy(bytes, &v, sizeof v);
    text.append(bytes, sizeof v);
    return *this;
  }
  Writer &string(llvm::StringRef s) {
    number(uint32_t(s.size()));
    text.append(s.data(), s.size());
    return *this;
  }
  std::string done() {
    const uint32_t n = uint32_t(text.size() - 4);
    std::memcpy(text.data(), &n, 4);
    return std::move(text);
  }

private:
  std::string text;
};

/// Reads values in turn. After a value that does not fit, all reads return zero or "".
class Reader {
public:
  explicit Reader(llvm::StringRef s) : rest(s) {}
  template <class T> T number() {
    T v{};
    if (!(good = good && rest.size() >= sizeof v))
      return v;
    std::memcpy(&v, rest.data(), sizeof v);
    rest = rest.drop_front(sizeof v);
    return v;
  }
  llvm::StringRef string() {
    const uint32_t n = number<uint32_t>();
    if (!(good = good && rest.size() >= n))
      return {};
    llvm::StringRef s = rest.take_front(n);
    rest = rest.drop_front(n);
    return s;
  }
  bool whole() const { return good && rest.empty(); }

private:
  llvm::StringRef rest;
  bool good = true;
};

/// Returns the complete message at `at` and advances `at` beyond it; nullopt if it is incomplete or its length is not
/// allowed, which sets `badLength`.
std::optional<llvm::StringRef> takeFrame(llvm::StringRef in, size_t &at, size_t most, std::optional<size_t> &badLength);

/// Owns a file descriptor.
class Socket {
public:
  Socket() = default;
  explicit Socket(int fd) : fd(fd) {}
  Socket(Socket &&o) noexcept : fd(o.fd) { o.fd = -1; }
  Socket &operator=(Socket &&o) noexcept {
    std::swap(fd, o.fd);
    return *this;
  }
  ~Socket();
  int fd = -1;
};

/// Wakes a thread that polls `event`.
class Waker {
public:
  Waker();
  void wake() const;
  void clear() const;
  Socket event;
};

/// Send or receive as much as possible without blocking. False if the connection has ended; `why` gives the reason.
bool sendSome(int fd, std::string &out, std::string &why);
bool receiveSome(int fd, std::string &in, size_t most, std::string &why);

/// Numeric address and port of one end.
struct Place {
  std::string host;
  uint16_t port = 0;
  std::string str() const { return hostAndPort(host, port); }
};
Place localPlace(int fd);
Place remotePlace(int fd);

/// A listening socket; empty if it failed, and `why` gives the reason.
Socket listenAt(const std::string &host, uint16_t port, std::string &why);
/// A connected, non-blocking socket; empty if it failed, and `why` gives the reason. Throws
/// UserError(TargetUnavailable) if it would connect to this machine itself and the loopback interface is down.
Socket connectTo(const std::string &host, uint16_t port, std::chrono::steady_clock::time_point until, std::string &why);

/// Compares in a time that does not depend on the difference.
bool equalInConstantTime(llvm::StringRef a, llvm::StringRef b);

}  // namespace gptc::wire
