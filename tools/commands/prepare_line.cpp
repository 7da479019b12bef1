#include "tools/commands/prepare_line.h"

#include "runtime/train/metrics.h"
#include "support/words.h"

#include <fmt/format.h>

namespace gptc {

void PrepareLine::show(const PrepareProgress &p, Clock::time_point now) {
  constexpr auto between = std::chrono::milliseconds(200);
  if (p.doing != doing) {
    doing = p.doing;
    began = now;
    before = p.done;
  }
  if (shown && now - *shown < between)
    return;
  shown = now;
  const double seconds = std::chrono::duration<double>(now - began).count();
  const double rate = seconds > 0 ? double(p.done - before) / seconds : 0;
  std::string text = fmt::format("{} {}", p.doing, formatBytes(double(p.done)));
  if (p.of)
    text += fmt::format(" of {} ({:.0f}%)", formatBytes(double(p.of)), 100 * double(p.done) / double(p.of));
  if (rate > 0) {
    text += fmt::format(", {}/s", formatBytes(rate));
    if (p.of > p.done)
      text += fmt::format(", {} left", formatDuration(double(p.of - p.done) / rate));
  }
  clear();
  std::fputs(text.c_str(), out);
  std::fflush(out);
  width = text.size();
}

void PrepareLine::clear() {
  if (width)
    std::fputs(fmt::format("\r{}\r", std::string(width, ' ')).c_str(), out);
  width = 0;
}

}  // namespace gptc
