#include "tools/commands/command_tree.h"

#include "support/diagnostics.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

extern char **environ;

namespace gptc {

ValueForm valueForm(const std::string &type) {
  ValueForm v;
  llvm::StringRef shown = type;
  if (auto [before, choices] = shown.split('{'); !choices.empty()) {
    llvm::SmallVector<llvm::StringRef, 8> words;
    choices.split('}').first.split(words, ',');
    for (llvm::StringRef w : words)
      v.words.push_back(w.str());
    v.type = llvm::join(v.words, "|");
    return v;
  }
  llvm::SmallVector<llvm::StringRef, 4> alternatives;
  shown.trim("[]").split(alternatives, '|');
  for (llvm::StringRef a : alternatives) {
    // Behind a colon stands a range, or what the user has to fill in.
    const llvm::StringRef word = a.split(':').first;
    if (const size_t dot = word.rfind('.'); dot != llvm::StringRef::npos)
      v.files = true, v.suffix = word.substr(dot).str();
    else if (word == "FILE" || word == "FILES")
      v.files = true;
    else if (word == "DIR" || word == "FOLDER" || word == "PLAN")
      v.folders = true;
    else if (!word.empty() && llvm::isLower(word.front()) && !llvm::is_contained(v.words, word))
      v.words.push_back(word.str());
  }
  v.type = (v.words.empty() ? shown.split(':').first : shown).str();
  return v;
}

namespace {

/// A program that was asked for its completions. Its destructor ends it.
class Asked {
public:
  Asked(std::string program, std::string shell) {
    std::array<int, 2> ends;
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      return;
    from = ends[0];
    ::fcntl(from, F_SETFL, O_NONBLOCK);
    std::string option = "--completion";
    char *arguments[] = {program.data(), option.data(), shell.data(), nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (::posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ) != 0)
      child = -1;
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (child > 0)
      end = int(::syscall(SYS_pidfd_open, child, 0));
  }
  Asked(const Asked &) = delete;
  Asked &operator=(const Asked &) = delete;
  ~Asked() {
    if (child > 0) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    for (int fd : {from, end})
      if (fd >= 0)
        ::close(fd);
  }

  bool started() const { return end >= 0; }

  /// Waits until the program has ended; false if it still runs after `most`. Needs started().
  bool wait(std::chrono::milliseconds most) {
    const auto deadline = std::chrono::steady_clock::now() + most;
    while (true) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
      pollfd fds[] = {{end, POLLIN, 0}, {from, POLLIN, 0}};  // a descriptor below 0 is left out
      if (left <= 0 || (::poll(fds, 2, int(left)) < 0 && errno != EINTR))
        return false;
      readAll();
      if (fds[0].revents)
        return true;
    }
  }

  /// What it printed, or nullopt if it failed. Needs a wait() that returned true.
  std::optional<std::string> answer() {
    int status = 0;
    const bool well = ::waitpid(std::exchange(child, -1), &status, 0) > 0 && WIFEXITED(status) && !WEXITSTATUS(status);
    return well ? std::optional(text) : std::nullopt;
  }

private:
  pid_t child = -1;
  int from = -1, end = -1;  // its standard output, and its pidfd
  std::string text;

  void readAll() {
    std::array<char, 1 << 16> bytes;
    while (from >= 0) {
      const ssize_t n = ::read(from, bytes.data(), bytes.size());
      if (n > 0)
        text.append(bytes.data(), size_t(n));
      else if (n < 0 && errno == EAGAIN)
        return;
      else if (n == 0 || errno != EINTR)
        ::close(std::exchange(from, -1));
    }
  }
};

}  // namespace

void printCompletionsBeside(const std::string &self, const std::string &shell) {
  constexpr std::chrono::seconds most{10};  // all take less than one
  const char *help = "install the programs of one version together";
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char *name : {"gptc", "gptrun", "gptc-opt", "gptc-reduce"}) {
    const std::string program = folder / name;
    if (name == self || ::access(program.c_str(), X_OK) != 0)
      continue;
    Asked asked(program, shell);
    if (asked.started() && !asked.wait(most))
      throw UserError(ErrorCode::TargetUnavailable,
                      fmt::format("{} has not said within {} s what it takes", program, most.count()), help);
    const std::optional<std::string> text = asked.started() ? asked.answer() : std::nullopt;
    if (!text)
      throw UserError(ErrorCode::TargetUnavailable, fmt::format("{} does not say what it takes", program), help);
    // Written by this program, which reports it if standard output is full.
    std::fwrite(text->data(), 1, text->size(), stdout);
  }
}

}  // namespace gptc
