// What the starts of ranks (crew.cpp) and of ssh (remote_crew.cpp) have in common.
#pragma once

#include "support/diagnostics.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>

namespace gptc {

/// Both ends of a pipe, which close with this object and where a child calls exec. An end that is taken out by
/// std::exchange(end, -1) stays open.
struct Pipe {
  int read = -1, write = -1;
  /// `reader`: whom the error is about, as "ssh". Throws UserError(OutOfMemory).
  Pipe(const std::string &reader, const std::string &help) {
    std::array<int, 2> ends;
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      throw UserError(ErrorCode::OutOfMemory, fmt::format("no pipe for {}: {}", reader, strerror(errno)), help);
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    for (int fd : {read, write})
      if (fd >= 0)
        ::close(fd);
  }
  Pipe(const Pipe &) = delete;
};

/// Between fork and exec: signals that this program handles or ignores do in the child what they do by default.
/// Async-signal-safe.
inline void restoreSignals() {
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD})
    ::signal(number, SIG_DFL);
}

}  // namespace gptc
