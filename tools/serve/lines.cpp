#include "tools/serve/lines.h"

#include "support/diagnostics.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace gptc {

namespace {

constexpr size_t longest = size_t(256) << 20;

}  // namespace

int openLines(const std::string &path, const std::string &help) {
  const int fd = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    throw UserError(ErrorCode::FileMissing, fmt::format("cannot read {}", path), help + "; - is standard input");
  return fd;
}

Lines::~Lines() {
  if (fd > STDIN_FILENO)
    ::close(fd);
}

bool Lines::ready() {
  pollfd p{fd, POLLIN, 0};
  while (!hasLine() && ::poll(&p, 1, 0) > 0)
    readMore();
  return hasLine();
}

std::optional<std::string> Lines::next() {
  while (!hasLine())
    readMore();
  if (begin == pending.size())
    return std::nullopt;
  const size_t end = std::min(pending.find('\n', begin), pending.size());
  std::string line = pending.substr(begin, end - begin);
  begin = searched = std::min(end + 1, pending.size());
  if (!line.empty() && line.back() == '\r')
    line.pop_back();
  return line;
}

std::string Lines::rest() {
  while (!atEnd)
    readMore();
  pending.erase(0, begin);
  begin = searched = 0;
  return std::exchange(pending, "");
}

bool Lines::hasLine() {
  if (atEnd)
    return true;
  const size_t end = pending.find('\n', searched);
  searched = end == std::string::npos ? pending.size() : end;
  return end != std::string::npos;
}

void Lines::readMore() {
  char buffer[1 << 16];
  const ssize_t n = ::read(fd, buffer, sizeof(buffer));
  if (n < 0 && errno != EINTR)
    throw UserError(ErrorCode::FileMissing, fmt::format("cannot read {} to its end", path));
  atEnd = n == 0;
  pending.erase(0, begin);
  searched -= begin;
  begin = 0;
  pending.append(buffer, size_t(std::max<ssize_t>(0, n)));
  if (pending.size() > longest && pending.find('\n') == std::string::npos)
    throw UserError(ErrorCode::TooLarge, fmt::format("{} has a line of more than 256 MiB", path));
}

}  // namespace gptc
