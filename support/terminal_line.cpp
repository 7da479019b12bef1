#include "support/terminal_line.h"

#include <fmt/format.h>

#include <string>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

namespace gptc {

namespace {

/// Takes away what stands on the line.
constexpr const char *kErase = "\r\033[K";

}  // namespace

TerminalLine::TerminalLine() : TerminalLine(stderr, ::isatty(STDERR_FILENO)) {}

bool TerminalLine::isDue(Clock::time_point now) const {
  return shows && (!last || now - *last >= std::chrono::milliseconds(200));
}

void TerminalLine::show(std::string_view text, Clock::time_point now) {
  if (!isDue(now))
    return;
  last = now;
  put(text, "");
  isThere = true;
}

void TerminalLine::clear() {
  if (std::exchange(isThere, false))
    put("", "");
}

void TerminalLine::end(std::string_view text) {
  if (shows)
    put(text, "\n");
  isThere = false;
}

/// Asked each time, because a window's size may change. The last column stays free, because some terminals wrap after
/// it.
size_t TerminalLine::columns() const {
  constexpr unsigned usual = 80;  // if the terminal does not tell
  winsize size{};
  const bool known = ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return (known ? size.ws_col : usual) - 1;
}

void TerminalLine::put(std::string_view text, const char *behind) {
  std::fputs(fmt::format("{}{}{}", kErase, text.substr(0, columns()), behind).c_str(), out);
  std::fflush(out);
}

}  // namespace gptc
