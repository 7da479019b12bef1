#include "tools/commands/main_guard.h"

#include "runtime/device/fault_place.h"
#include "support/diagnostics.h"
#include "support/environment.h"
#include "support/out_of_memory.h"
#include "support/stderr.h"
#include "support/thread_stack.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <new>
#include <pthread.h>
#include <sys/resource.h>
#include <system_error>
#include <unistd.h>

extern char **environ;

namespace gptc {

namespace {

int report(const UserError &e) {
  std::fflush(stdout);
  const bool color = ::isatty(STDERR_FILENO) && !std::getenv("NO_COLOR");
  std::string text;
  for (const Diagnostic &d : e.diagnostics)
    text += (text.empty() ? "" : "\n") + d.str(color);
  if (e.diagnostics.size() > 1)
    text += fmt::format("\n{} errors\n", e.diagnostics.size());
  std::fputs(text.c_str(), stderr);
  return e.exitCode();
}

int reportBug(const char *what) {
  std::fflush(stdout);
  std::fprintf(
      stderr,
      "error[GPTC%d]: a bug in gptc: %s\n   = help: please report it with the command line and the files it read\n",
      int(ErrorCode::Internal), what);
  return exitCodeOf(ErrorCode::Internal);
}

/// Reports that standard output could not be written. Returns 0 if its reader went away, which is no error.
int reportOutput(int error) { return error == EPIPE ? 0 : report(outputError(error)); }

int flushOutput() {
  if (std::fflush(stdout) != 0)
    return reportOutput(errno);
  if (!std::ferror(stdout))
    return 0;
  // An earlier write failed, but a stream does not keep the reason; most likely it still applies.
  if (::write(STDOUT_FILENO, "\n", 1) < 0)
    return reportOutput(errno);
  return report(UserError(ErrorCode::Unwritable, "a part of standard output could not be written and is lost",
                          "where it goes, later writes succeeded: a disk may have been full for a while"));
}

/// A closed standard descriptor (`>&-`) would be reused by the next file opened, which would then receive output.
/// Replaces it by a descriptor that cannot be written or read either; but output to a closed standard error is
/// discarded silently.
void keepStandardDescriptors() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      (void)!::open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
}

/// Only one of several ranks warns.
void warnOfStrangeVariables() {
  for (const char *rank : {"GPTC_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "RANK"})
    if (const char *number = std::getenv(rank); number && *number && number != llvm::StringRef("0"))
      return;
  // gptrun, whose ranks have a pulse, has warned already.
  if (ownVariable("GPTC_PULSE"))
    return;
  for (const std::string &sentence : strangeVariables(environ))
    printError("warning: {}\n", sentence);
}

/// Async-signal-safe calls only.
[[maybe_unused]] void onFault(int) {
  auto say = [](const char *text) { (void)!::write(STDERR_FILENO, text, std::strlen(text)); };
  static_assert(int(ErrorCode::Internal) == 7001);
  say("error[GPTC7001]: a bug in gptc: a fault of memory");
  if (const char *place = FaultPlace::now()) {
    say(" in ");
    say(place);
  }
  say("\n   = help: please report it with the command line and the files it read\n");
  ::_exit(70);
}

void catchFaults() {
#ifndef __SANITIZE_ADDRESS__  // which says more about them
  // A separate stack, because the fault may be a stack overflow.
  static char stack[1 << 16];
  stack_t s{};
  s.ss_sp = stack;
  s.ss_size = sizeof stack;
  ::sigaltstack(&s, nullptr);
  struct sigaction a{};
  a.sa_handler = onFault;
  a.sa_flags = SA_ONSTACK;
  ::sigaction(SIGSEGV, &a, nullptr);
  ::sigaction(SIGBUS, &a, nullptr);
#endif
}

bool isShortage(const std::error_code &code) {
  return code == std::errc::resource_unavailable_try_again || code == std::errc::not_enough_memory;
}

/// Handles exceptions that nobody can catch: from a thread, or inside noexcept code.
[[noreturn]] void onTerminate() {
  try {
    if (std::current_exception())
      throw;
  } catch (const std::bad_alloc &) {
    endOutOfMemory();
  } catch (const std::system_error &e) {
    if (isShortage(e.code()))
      endOutOfMemory();
    ::_exit(reportBug(e.what()));
  } catch (const std::exception &e) {
    ::_exit(reportBug(e.what()));
  } catch (...) {
  }
  ::_exit(reportBug("an exception that nothing catches"));
}

/// Gives threads the usual stack size regardless of `ulimit -s`, which is meant for other programs, and the main thread
/// as much as allowed.
void takeStack() {
  constexpr rlim_t usual = kThreadStack, least = 512 << 10;
  rlimit r{};
  if (::getrlimit(RLIMIT_STACK, &r) != 0)
    return;
  if (r.rlim_cur < usual) {
    r.rlim_cur = std::min(usual, r.rlim_max);
    ::setrlimit(RLIMIT_STACK, &r);
  }
  if (r.rlim_cur < least)
    throw UserError(ErrorCode::OutOfMemory,
                    fmt::format("the stack is limited to {} KiB, and {} KiB are needed", r.rlim_cur >> 10, least >> 10),
                    "raise the limit: `ulimit -s 8192`");
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0)
    return;
  ::pthread_attr_setstacksize(&attributes, usual);
  ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
}

}  // namespace

UserError outputError(int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return UserError(full ? ErrorCode::DiskFull : ErrorCode::Unwritable,
                   fmt::format("cannot write to standard output: {}", std::strerror(error)));
}

Diagnostic currentError() {
  try {
    throw;
  } catch (const UserError &e) {
    return e.diagnostics[0];
  } catch (const std::filesystem::filesystem_error &e) {
    return {.code = ErrorCode::FileMissing, .message = fmt::format("{}: {}", e.path1().string(), e.code().message())};
  } catch (const std::bad_alloc &) {
    return {.code = ErrorCode::OutOfMemory, .message = outOfMemoryText, .help = {outOfMemoryHelp}};
  } catch (const std::system_error &e) {
    if (isShortage(e.code()))
      return {.code = ErrorCode::OutOfMemory,
              .message =
                  fmt::format("the system has no more threads or memory for this program: {}", e.code().message()),
              .help = {"fewer --threads, or raise the limits that `ulimit -a` shows (-u counts threads)"}};
    return {.code = ErrorCode::Internal, .message = fmt::format("a bug in gptc: {}", e.what())};
  } catch (const std::exception &e) {
    return {.code = ErrorCode::Internal, .message = fmt::format("a bug in gptc: {}", e.what())};
  }
}

int guardedMain(const std::function<int()> &work) {
  keepStandardDescriptors();
  ::signal(SIGXFSZ, SIG_IGN);  // writing beyond `ulimit -f` is then an ordinary write error
  catchFaults();
  catchOutOfMemory();
  std::set_terminate(onTerminate);
  try {
    takeStack();
    warnOfStrangeVariables();
    const int code = work();
    const int output = flushOutput();
    return output ? output : code;
  } catch (const UserError &e) {
    return report(e);
  } catch (const std::filesystem::filesystem_error &) {
    return report(UserError(currentError()));
  } catch (const std::system_error &e) {  // also thrown by fmt::print when the output buffer is flushed
    if (std::ferror(stdout))
      return reportOutput(e.code().value());
    return isShortage(e.code()) ? report(UserError(currentError())) : reportBug(e.what());
  } catch (const InternalError &e) {
    return reportBug(e.what());
  } catch (const std::bad_alloc &) {
    return report(UserError(currentError()));
  } catch (const std::exception &e) {
    return reportBug(e.what());
  }
}

}  // namespace gptc
