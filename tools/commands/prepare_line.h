// The line that follows `gptc data prepare` on a terminal.
#pragma once

#include "frontends/data_prepare.h"
#include "support/terminal_line.h"

#include <chrono>
#include <cstdio>
#include <string>

namespace gptc {

class PrepareLine {
public:
  using Clock = TerminalLine::Clock;

  explicit PrepareLine(std::FILE *out) : line(out, true) {}
  /// `counting 12.0 MiB of 48.0 MiB (25%), 3072.0 KiB/s, 0:12 left` in the place of what it showed before, at most five
  /// times a second. The rate is that since the work which is being done began.
  void show(const PrepareProgress &p, Clock::time_point now = Clock::now());
  /// Takes the line away.
  void clear() { line.clear(); }

private:
  TerminalLine line;
  std::string doing;
  Clock::time_point began;
  int64_t before = 0;
};

}  // namespace gptc
