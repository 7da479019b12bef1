// Loaded with LD_PRELOAD by the fault tests, so that the programs themselves hold no test code: a signal makes a thread
// of a rank do what faulty code, a library or a network would do to it.
//   SIGRTMIN+1  spins for ever, with its heartbeat going on
//   SIGRTMIN+2  exits with code 17
//   SIGRTMIN+3  resets its connections to other ranks
//   SIGRTMIN+4  cuts one of them: nothing arrives any more, not even what acknowledges, and nobody is told
//   SIGRTMIN+5  cuts all its connections, that to the rendezvous too: a cable is pulled
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

int rendezvousPort = 0;

/// The port at the other end of a TCP connection, 0 where the descriptor is none.
int peerPort(int fd) {
  sockaddr_storage a{};
  socklen_t n = sizeof a;
  int type = 0;
  socklen_t typeBytes = sizeof type;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &typeBytes) != 0 || type != SOCK_STREAM ||
      ::getpeername(fd, reinterpret_cast<sockaddr *>(&a), &n) != 0)
    return 0;
  if (a.ss_family == AF_INET)
    return ntohs(reinterpret_cast<sockaddr_in *>(&a)->sin_port);
  return a.ss_family == AF_INET6 ? ntohs(reinterpret_cast<sockaddr_in6 *>(&a)->sin6_port) : 0;
}

/// Calls `f` for connections, those to other ranks or all, until it says that this was enough.
template <class F> void forConnections(bool all, F f) {
  for (int fd = 3; fd < 1024; ++fd)
    if (const int port = peerPort(fd); port && (all || port != rendezvousPort))
      if (f(fd))
        return;
}

/// What comes in is dropped before TCP sees it.
void cut(int fd) {
  sock_filter dropAll = {BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program = {1, &dropAll};
  ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

void onSignal(int number) {
  switch (number - SIGRTMIN) {
  case 1:
    for (volatile bool forever = true; forever;)
      ;
    break;
  case 2:
    ::_exit(17);
  case 3:
    forConnections(false, [](int fd) { return ::shutdown(fd, SHUT_RDWR), false; });
    break;
  case 4:
    forConnections(false, [](int fd) { return cut(fd), true; });
    break;
  case 5:
    forConnections(true, [](int fd) { return cut(fd), false; });
    break;
  }
}

/// Before main(), so that no rank is too young.
const bool installed = [] {
  if (const char *where = std::getenv("GPTC_RENDEZVOUS"); where && std::strrchr(where, ':'))
    rendezvousPort = std::atoi(std::strrchr(where, ':') + 1);
  struct sigaction a{};
  a.sa_handler = onSignal;
  a.sa_flags = SA_RESTART;
  for (int i = 1; i <= 5; ++i)
    ::sigaction(SIGRTMIN + i, &a, nullptr);
  return true;
}();

}  // namespace
