// A line on a terminal that is written over, for those who wait.
#pragma once

#include <cstdio>

#include <chrono>
#include <optional>
#include <string_view>

namespace gptc {

/// Failures of writing are ignored, as printError's are.
class TerminalLine {
public:
  using Clock = std::chrono::steady_clock;

  /// On standard error, if that is a terminal.
  TerminalLine();
  /// On `out`, if `shows`.
  TerminalLine(std::FILE *out, bool shows) : out(out), shows(shows) {}
  ~TerminalLine() { clear(); }
  TerminalLine(const TerminalLine &) = delete;

  /// Whether show() would show a text: at most five times a second. Asked before a text is made that costs something.
  bool isDue(Clock::time_point now = Clock::now()) const;
  /// Puts a text in the place of the one before, if that is due. It is cut to the terminal's width, because a line
  /// that wraps could not be written over.
  void show(std::string_view text, Clock::time_point now = Clock::now());
  /// Takes the line away.
  void clear();
  /// Leaves a text there, due or not, and goes on below it.
  void end(std::string_view text);

private:
  size_t columns() const;
  void put(std::string_view text, const char *behind);

  std::FILE *const out;
  const bool shows;
  bool isThere = false;
  std::optional<Clock::time_point> last;
};

}  // namespace gptc
