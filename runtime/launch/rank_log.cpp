#include "runtime/launch/rank_log.h"

#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/words.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace gptc {
namespace {

constexpr size_t kLongestLine = 1 << 16;  // bytes; longer lines are split
constexpr size_t kLongestError = 1 << 16;
constexpr size_t kMostUnlogged = 1 << 12;

}  // namespace

std::string rankLogName(int rank) { return fmt::format("ranks/rank-{:04}.log", rank); }

RankLines::~RankLines() {
  if (fd >= 0)
    ::close(fd);
}

void RankLines::line(llvm::StringRef text, std::string &plain) {
  if (!file.empty()) {
    if (fd < 0)
      fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    // A full disk ends the rank that writes checkpoints there; a mere log must not end a rank.
    const std::string quoted =
        nlohmann::json(text.str()).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const std::string all = fmt::format(R"({{"time": "{}", "rank": {}, "line": {}}})"
                                        "\n",
                                        timeNow(), rank, quoted);
    if (fd >= 0)
      (void)!::write(fd, all.data(), all.size());
  }
  if (!errorText.empty() || text.starts_with("error[GPTC")) {
    if (errorText.size() < kLongestError)
      errorText += text.str() + "\n";
    return;
  }
  plain += text.str() + "\n";
  if (!file.empty())
    return;
  lastLines += text.str() + "\n";
  if (lastLines.size() > kMostUnlogged)
    lastLines.erase(0, lastLines.size() - kMostUnlogged);
}

std::string RankLines::take(llvm::StringRef bytes) {
  std::string plain;
  rest.append(bytes.data(), bytes.size());
  size_t begin = 0;
  for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1)
    line(llvm::StringRef(rest).slice(begin, end), plain);
  rest.erase(0, begin);
  if (rest.size() > kLongestLine) {
    line(rest, plain);
    rest.clear();
  }
  return plain;
}

void divertOutput(int rank, const std::string &outDir) {
  makeDirs(outDir + "/ranks");
  const std::string file = outDir + "/" + rankLogName(rank);
  std::array<int, 2> ends;
  const bool piped = ::pipe(ends.data()) == 0;
  std::fflush(stdout);
  const pid_t writer = piped ? ::fork() : -1;
  if (writer < 0)
    throw UserError(ErrorCode::OutOfMemory, fmt::format("no process for {}: {}", file, strerror(errno)),
                    "start fewer ranks, or raise `ulimit -u` and `ulimit -n`");
  if (writer == 0) {
    // Signals are for the rank; this process ends when the rank does.
    for (int number : {SIGINT, SIGTERM, SIGHUP})
      ::signal(number, SIG_IGN);
    ::dup2(ends[0], 0);
    for (int fd = 1; fd < 256; ++fd)  // do not hold open what others wait to see closed
      ::close(fd);
    {
      RankLines lines(rank, file);
      std::array<char, 1 << 16> bytes;
      for (ssize_t n; (n = ::read(0, bytes.data(), bytes.size())) > 0 || (n < 0 && errno == EINTR);)
        lines.take(llvm::StringRef(bytes.data(), size_t(std::max<ssize_t>(n, 0))));
      lines.finish();
    }
    ::_exit(0);
  }
  ::dup2(ends[1], 1);
  ::dup2(ends[1], 2);
  ::close(ends[0]);
  ::close(ends[1]);
}

std::string RankLines::finish() {
  std::string plain;
  if (!rest.empty())
    line(rest, plain);
  rest.clear();
  return plain;
}

}  // namespace gptc
