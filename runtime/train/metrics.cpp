#include "runtime/train/metrics.h"

#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/words.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <stdio_ext.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace gptc {
namespace {

constexpr size_t kLogLimit = size_t(1) << 30;

template <typename T> std::string number(T v) { return std::isfinite(v) ? fmt::format("{}", v) : "null"; }

/// Each whole line of a log that is an object with a step: its text with the line's end, and the object.
template <class Take> void eachLineOfAStep(llvm::StringRef log, Take take) {
  for (size_t end; (end = log.find('\n')) != llvm::StringRef::npos; log = log.drop_front(end + 1))
    if (const nlohmann::json j = parseJsonOrDiscard(log.take_front(end)); part(j, "step").is_number_integer())
      take(log.take_front(end + 1), j);
}

}  // namespace

MetricsLog::MetricsLog(const std::string &outDir, int64_t step) : path(outDir + "/log.jsonl") {
  FileText old = readTextFile(path, kLogLimit);
  std::string kept;
  eachLineOfAStep(old.text, [&](llvm::StringRef line, const nlohmann::json &j) {
    if (j["step"] > step)
      return;
    if (j.contains("val_loss"))
      evaluated = j["step"];
    kept += line;
  });
  if (old.ok && kept != old.text)
    writeFileAtomically(path, kept);
  fd = openAppending(path);
}

std::map<int64_t, LoggedStep> readLoggedSteps(const std::string &outDir) {
  std::map<int64_t, LoggedStep> steps;
  const FileText file = readTextFile(outDir + "/log.jsonl", kLogLimit);
  eachLineOfAStep(file.text, [&](llvm::StringRef, const nlohmann::json &j) {
    if (!j.contains("loss"))
      return;
    auto value = [&](const char *name) { return part(j, name).is_number() ? part(j, name).get<float>() : NAN; };
    steps[j["step"]] = {value("loss"), value("grad_norm")};
  });
  return steps;
}

MetricsLog::~MetricsLog() {
  if (fd >= 0)
    ::close(fd);
}

void MetricsLog::line(const std::string &text) { appendAll(fd, path, text); }

void MetricsLog::step(const StepMetrics &m) {
  line(fmt::format(
      R"({{"step": {}, "loss": {}, "lr": {}, "grad_norm": {}, "ms": {}, "tokens_per_s": {}, "mfu": {}{}{}, "time": "{}"}})"
      "\n",
      m.step, number(m.loss), number(m.lr), number(m.gradNorm), number(std::round(m.ms * 1000) / 1000),
      number(std::round(m.tokensPerSecond * 10) / 10), number(std::round(m.mfu * 1e5) / 1e5),
      std::isfinite(m.mfuMeasured)
          ? fmt::format(", \"mfu_measured\": {}", number(std::round(m.mfuMeasured * 1e5) / 1e5))
          : "",
      m.lossScale > 0 ? fmt::format(", \"loss_scale\": {}", m.lossScale) : "", timeNow()));
}

void MetricsLog::evaluation(int64_t step, double valLoss, const std::vector<Measure> &measures) {
  evaluated = step;
  std::string more;
  for (const Measure &m : measures)
    more += fmt::format(", \"val_{}\": {}", m.name, number(m.value));
  line(fmt::format("{{\"step\": {}, \"val_loss\": {}{}, \"time\": \"{}\"}}\n", step, number(valLoss), more, timeNow()));
}

std::string fitLine(llvm::ArrayRef<LineField> fields, size_t columns) {
  std::vector<const LineField *> kept;
  for (const LineField &f : fields)
    if (!f.text.empty())
      kept.push_back(&f);
  auto joined = [&] {
    std::string text;
    for (const LineField *f : kept)
      text += (text.empty() ? "" : "  ") + f->text;
    return text;
  };
  std::string text = joined();
  while (text.size() > columns && kept.size() > 1) {
    kept.erase(std::min_element(kept.begin(), kept.end(),
                                [](const LineField *a, const LineField *b) { return a->priority < b->priority; }));
    text = joined();
  }
  return text.substr(0, columns);
}

ProgressLine::ProgressLine(FILE *out, int64_t steps) : out(out), steps(steps), terminal(::isatty(::fileno(out))) {}

/// Columns that a line may take without wrapping. Asked each time, because a window's size may change. The last column
/// stays free, because some terminals wrap after it.
size_t ProgressLine::columns() const {
  constexpr unsigned usual = 80;  // if the terminal does not tell
  winsize w{};
  const unsigned all = ::ioctl(::fileno(out), TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : usual;
  return std::max(1u, all - 1);
}

void ProgressLine::show(const StepMetrics &m, double msLeft, int64_t memoryBytes, bool logged) {
  if (!terminal && !logged)
    return;
  auto scaled = [](double v) {
    return v >= 1e6   ? fmt::format("{:.2f}M", v / 1e6)
           : v >= 1e3 ? fmt::format("{:.1f}k", v / 1e3)
                      : fmt::format("{:.0f}", v);
  };
  const LineField fields[] = {
      {fmt::format("step {}/{}", m.step, steps), 9},
      {fmt::format("loss {:.4f}", m.loss), 8},
      {fmt::format("lr {:.2e}", m.lr), 2},
      {fmt::format("norm {:.2f}", m.gradNorm), 3},
      {m.lossScale > 0 ? fmt::format("scale 2^{}", std::ilogb(m.lossScale)) : "", 0},
      {fmt::format("{:.1f} ms", m.ms), 4},
      {fmt::format("{} tok/s", scaled(m.tokensPerSecond)), 6},
      {std::isfinite(m.mfu) ? fmt::format("MFU {:.1f}% ({})", m.mfu * 100, m.mfuOf) : "", 5},
      {fmt::format("{:.2f} GB", memoryBytes / 1e9), 1},
      {fmt::format("{} left", formatDuration(msLeft / 1000)), 7},
  };
  const size_t width = terminal ? columns() : std::string::npos;
  const std::string text = fitLine(fields, width);
  // Blanks cover the rest of a longer previous line, as far as the window still shows it.
  shown = std::min(shown, width);
  print(terminal ? fmt::format("\r{:<{}}", text, shown) : text + "\n");
  if (terminal)
    shown = text.size();
}

void ProgressLine::say(const std::string &text) {
  if (shown)
    shown = std::min(shown, columns());
  print((shown ? fmt::format("\r{:<{}}\r", "", shown) : "") + text + "\n");
  shown = 0;
}

void ProgressLine::end() {
  print(shown ? "\n" : "");
  shown = 0;
}

void ProgressLine::print(const std::string &text) {
  errno = 0;
  std::fwrite(text.data(), 1, text.size(), out);
  if (std::fflush(out) == 0 || (errno != EPIPE && errno != EIO))
    return;
  // The pipe has no reader, or the terminal closed while SIGHUP is ignored: the run goes on without output.
  readerGone = readerGone || errno == EPIPE;
  std::clearerr(out);
  ::__fpurge(out);
}

std::string formatDuration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e10))
    return "?";
  int64_t s = std::llround(seconds);
  if (s >= 86400)
    return fmt::format("{} d {}:{:02}:{:02}", s / 86400, s / 3600 % 24, s / 60 % 60, s % 60);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace gptc
