#include "tests/support/port.h"

#include <cstddef>
#include <cstring>
#include <netinet/in.h>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace gptc::test {

namespace {

constexpr int kFirst = 20000, kPairs = 5000;

/// A socket without a file, whose name ends with the process; -1 where another has the name.
int holdName(int port) {
  const std::string name = "gptc-test-port-" + std::to_string(port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a leading zero byte: unix(7), abstract
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto size = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr *>(&address), size) == 0)
    return fd;
  if (fd >= 0)
    ::close(fd);
  return -1;
}

bool canListen(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(uint16_t(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool can =
      fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0 && ::listen(fd, 1) == 0;
  if (fd >= 0)
    ::close(fd);
  return can;
}

}  // namespace

Port::Port() {
  for (int i = 0; i < kPairs; ++i) {
    port = kFirst + 2 * ((::getpid() + i) % kPairs);
    lock = holdName(port);
    if (lock >= 0 && canListen(port) && canListen(port + 1))
      return;
    if (lock >= 0)
      ::close(lock);
  }
  throw std::runtime_error("this machine has no two free ports in a row from 20000 to 29999");
}

Port::~Port() { ::close(lock); }

}  // namespace gptc::test
