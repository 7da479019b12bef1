#include "runtime/rendezvous/wire.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gptc {

std::string newToken() {
  unsigned char bytes[16];
  GPTC_CHECK(getrandom(bytes, sizeof bytes, 0) == ssize_t(sizeof bytes), "{}", std::strerror(errno));
  std::string text;
  for (unsigned char b : bytes)
    text += fmt::format("{:02x}", b);
  return text;
}

std::string hostAndPort(llvm::StringRef host, uint16_t port) {
  return host.contains(':') ? fmt::format("[{}]:{}", host.str(), port) : fmt::format("{}:{}", host.str(), port);
}

std::string hostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return *name ? name : "this machine";
}

namespace wire {

Socket::~Socket() {
  if (fd >= 0)
    close(fd);
}

Waker::Waker() : event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  GPTC_CHECK(event.fd >= 0, "eventfd: {}", std::strerror(errno));
}
void Waker::wake() const { eventfd_write(event.fd, 1); }
void Waker::clear() const {
  eventfd_t n;
  eventfd_read(event.fd, &n);
}

std::optional<llvm::StringRef> takeFrame(llvm::StringRef in, size_t &at, size_t most,
                                         std::optional<size_t> &badLength) {
  if (in.size() - at < 4)
    return std::nullopt;
  uint32_t n;
  std::memcpy(&n, in.data() + at, 4);
  if (n > most || n == 0) {
    badLength = n;
    return std::nullopt;
  }
  if (in.size() - at - 4 < n)
    return std::nullopt;
  const llvm::StringRef frame = in.substr(at + 4, n);
  at += 4 + size_t(n);
  return frame;
}

bool sendSome(int fd, std::string &out, std::string &why) {
  size_t sent = 0;
  while (sent < out.size()) {
    const ssize_t n = send(fd, out.data() + sent, out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      break;
    if (n < 0) {
      why = std::strerror(errno);
      return false;
    }
    sent += size_t(n);
  }
  out.erase(0, sent);
  return true;
}

bool receiveSome(int fd, std::string &in, size_t most, std::string &why) {
  char buffer[1 << 16];
  while (in.size() < most) {
    const ssize_t n = recv(fd, buffer, std::min(sizeof buffer, most - in.size()), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      return true;
    if (n <= 0) {
      why = n == 0 ? "its connection closed" : std::strerror(errno);
      return false;
    }
    in.append(buffer, size_t(n));
  }
  return true;
}

static Place placeOf(const sockaddr_storage &a, socklen_t n) {
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  getnameinfo(reinterpret_cast<const sockaddr *>(&a), n, host, sizeof host, port, sizeof port,
              NI_NUMERICHOST | NI_NUMERICSERV);
  return {host, uint16_t(std::atoi(port))};
}
Place localPlace(int fd) {
  sockaddr_storage a{};
  socklen_t n = sizeof a;
  getsockname(fd, reinterpret_cast<sockaddr *>(&a), &n);
  return placeOf(a, n);
}
Place remotePlace(int fd) {
  sockaddr_storage a{};
  socklen_t n = sizeof a;
  getpeername(fd, reinterpret_cast<sockaddr *>(&a), &n);
  return placeOf(a, n);
}

namespace {
struct Addresses {
  addrinfo *first = nullptr;
  Addresses(const std::string &host, uint16_t port, int flags, std::string &why) {
    addrinfo hints{};
    hints.ai_flags = flags | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    if (int e = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first); e != 0) {
      why = gai_strerror(e);
      first = nullptr;
    }
  }
  ~Addresses() {
    if (first)
      freeaddrinfo(first);
  }
};
}  // namespace

Socket listenAt(const std::string &host, uint16_t port, std::string &why) {
  const Addresses addresses(host, port, AI_PASSIVE, why);
  for (const addrinfo *a = addresses.first; a; a = a->ai_next) {
    Socket s(socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1, off = 0;
    if (s.fd >= 0) {
      setsockopt(s.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (a->ai_family == AF_INET6)
        setsockopt(s.fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (s.fd >= 0 && bind(s.fd, a->ai_addr, a->ai_addrlen) == 0 && listen(s.fd, 256) == 0)
      return s;
    why = std::strerror(errno);
  }
  return Socket();
}

static bool isLoopback(const sockaddr *a) {
  return a->sa_family == AF_INET && ntohl(reinterpret_cast<const sockaddr_in *>(a)->sin_addr.s_addr) >> 24 == 127;
}

Socket connectTo(const std::string &host, uint16_t port, std::chrono::steady_clock::time_point until,
                 std::string &why) {
  const Addresses addresses(host, port, 0, why);
  bool down = false;
  for (const addrinfo *a = addresses.first; a; a = a->ai_next) {
    Socket s(socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (s.fd < 0) {
      why = std::strerror(errno);
      continue;
    }
    if (connect(s.fd, a->ai_addr, a->ai_addrlen) == 0)
      return s;
    if (errno != EINPROGRESS) {
      down = down || (errno == ENETUNREACH && isLoopback(a->ai_addr));
      why = std::strerror(errno);
      continue;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd p{s.fd, POLLOUT, 0};
    int error = ETIMEDOUT;
    socklen_t n = sizeof error;
    if (poll(&p, 1, int(std::max<int64_t>(left.count(), 0))) == 1)
      getsockopt(s.fd, SOL_SOCKET, SO_ERROR, &error, &n);
    // Without a listener, the system may give the port to the connecting socket itself, which then talks to itself.
    if (error == 0 && localPlace(s.fd).str() == remotePlace(s.fd).str())
      error = ECONNREFUSED;
    if (error == 0)
      return s;
    why = std::strerror(error);
  }
  if (down)  // and stays down
    throw UserError(ErrorCode::TargetUnavailable,
                    fmt::format("ranks of one machine cannot meet: {} cannot be reached, as the loopback interface is "
                                "down",
                                hostAndPort(host, port)),
                    "`ip link set lo up`, as root of this machine or container");
  return Socket();
}

bool equalInConstantTime(llvm::StringRef a, llvm::StringRef b) {
  unsigned char difference = a.size() != b.size();
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
  return difference == 0 && !b.empty();
}

}  // namespace wire
}  // namespace gptc
