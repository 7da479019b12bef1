#include "tools/commands/prepare_line.h"

#include "runtime/train/metrics.h"
#include "support/words.h"

#include <fmt/format.h>

namespace gptc {

void PrepareLine::show(const PrepareProgress &p, Clock::time_point now) {
  if (p.doing != doing) {
    doing = p.doing;
    began = now;
    before = p.done;
  }
  if (!line.isDue(now))
    return;
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
  line.show(text, now);
}

}  // namespace gptc
