// Loaded with LD_PRELOAD by the kill tests: ends the process, or makes a call fail or take long, inside the Nth write,
// fsync or rename that concerns a checkpoint, or the Nth accept.
//   GPTC_TEST_AT      "write:3", "fsync:2", "rename:1", "accept:2": which call, counted from 1; a write is cut in half
//                     first
//   GPTC_TEST_DO      "kill" (default) | "enospc" and "edquot": a full disk or quota | "enfile": no descriptors in the
//                     whole system | "sleep": two seconds
//   GPTC_TEST_RANK    the rank that it happens to; default: any
//   GPTC_TEST_LATE    a rank that takes half a second to create each file; others take one to give up a folder
//   GPTC_TEST_COUNTS  a file that receives the totals on exit, in this order
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace {

enum Call { writeCall, fsyncCall, renameCall, acceptCall, calls };
const char *const names[calls] = {"write", "fsync", "rename", "accept"};
std::atomic<int> counts[calls];

template <typename F> F next(const char *name) { return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name)); }

bool concerns(const char *path) { return path && std::strstr(path, "/checkpoints"); }

bool concerns(int fd) {
  char path[4096];
  ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path - 1);
  if (n < 0)
    return false;
  path[n] = 0;
  return concerns(path);
}

bool isRank(const char *named) {
  const char *rank = std::getenv("GPTC_RANK");
  return rank && std::strcmp(named, rank) == 0;
}

bool isMoment(Call call) {
  int n = ++counts[call];
  const char *at = std::getenv("GPTC_TEST_AT"), *only = std::getenv("GPTC_TEST_RANK");
  if (only && !isRank(only))
    return false;
  size_t length = std::strlen(names[call]);
  return at && std::strncmp(at, names[call], length) == 0 && at[length] == ':' && std::atoi(at + length + 1) == n;
}

int act() {
  const char *what = std::getenv("GPTC_TEST_DO");
  for (auto [name, error] : {std::pair("enospc", ENOSPC), {"edquot", EDQUOT}, {"enfile", ENFILE}})
    if (what && std::strcmp(what, name) == 0) {
      errno = error;
      return -1;
    }
  if (what && std::strcmp(what, "sleep") == 0) {
    ::sleep(2);
    return 0;
  }
  ::kill(::getpid(), SIGKILL);
  for (;;)
    ::pause();
}

struct Report {
  ~Report() {
    const char *file = std::getenv("GPTC_TEST_COUNTS");
    FILE *f = file ? std::fopen(file, "w") : nullptr;
    if (!f)
      return;
    for (auto &n : counts)
      std::fprintf(f, "%d\n", n.load());
    std::fclose(f);
  }
} report;

}  // namespace

extern "C" {

int open(const char *path, int flags, ...) {
  static auto real = next<int (*)(const char *, int, ...)>("open");
  va_list more;
  va_start(more, flags);
  const int mode = flags & O_CREAT ? va_arg(more, int) : 0;
  va_end(more);
  if (const char *late = std::getenv("GPTC_TEST_LATE"); late && flags & O_CREAT && concerns(path) && isRank(late))
    ::usleep(500'000);
  return real(path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t bytes) {
  static auto real = next<ssize_t (*)(int, const void *, size_t)>("write");
  if (concerns(fd) && isMoment(writeCall)) {
    const ssize_t half = real(fd, data, bytes / 2);
    return act() ? -1 : half;
  }
  return real(fd, data, bytes);
}

int fsync(int fd) {
  static auto real = next<int (*)(int)>("fsync");
  return concerns(fd) && isMoment(fsyncCall) && act() ? -1 : real(fd);
}

int rename(const char *from, const char *to) {
  static auto real = next<int (*)(const char *, const char *)>("rename");
  if (concerns(to) && std::strstr(to, ".tmp.gone")) {  // given up
    const int r = real(from, to);
    if (const char *late = std::getenv("GPTC_TEST_LATE"); late && !isRank(late))
      ::sleep(1);
    return r;
  }
  return concerns(to) && isMoment(renameCall) && act() ? -1 : real(from, to);
}

int accept(int fd, sockaddr *from, socklen_t *size) {
  static auto real = next<int (*)(int, sockaddr *, socklen_t *)>("accept");
  return isMoment(acceptCall) && act() ? -1 : real(fd, from, size);
}

}  // extern "C"
