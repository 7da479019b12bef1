#include "runtime/device/peak.h"

#include "codegen/cpu/peak.h"
#include "codegen/object_cache.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>

namespace gptc {

namespace {

constexpr int mostAttempts = 8;
constexpr double agreement = 0.02;
constexpr int enough = 3;          // attempts that must agree
constexpr int mostRemeasured = 3;  // new measurements per run

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &utc);
  return text;
}

/// "574 GFLOP/s", "989.5 TFLOP/s".
std::string inWords(double flops) {
  return flops >= 1e13 ? fmt::format("{:.1f} TFLOP/s", flops * 1e-12) : fmt::format("{:.0f} GFLOP/s", flops * 1e-9);
}

}  // namespace

std::string PeakRecord::key() const {
  const std::string all = "peak 1 " + what;
  return contentHash({llvm::ArrayRef(all.data(), all.size())});
}

std::optional<Peak> PeakRecord::known() const {
  const std::optional<std::vector<char>> entry = ObjectCache(cacheDir).read(key());
  if (!entry)
    return std::nullopt;
  const auto [number, date] = llvm::StringRef(entry->data(), entry->size()).split(' ');
  Peak p;
  if (number.getAsDouble(p.flops) || !(p.flops > 0 && std::isfinite(p.flops)) || date.size() != 10)
    return std::nullopt;
  p.date = date.str();
  return p;
}

Peak PeakRecord::get() const {
  const std::optional<Peak> before = known();
  return before ? *before : again();
}

Peak PeakRecord::again() const {
  Peak best;
  for (int i = 0, agree = 0; i < mostAttempts && agree < enough; ++i) {
    const double flops = attempt();
    if (!(flops > 0 && std::isfinite(flops)))
      break;
    agree = flops > best.flops * (1 + agreement) ? 1 : agree + (flops > best.flops * (1 - agreement));
    best.flops = std::max(best.flops, flops);
  }
  best.date = today();
  // Ranks of one machine may measure at the same time: respect a record that appeared meanwhile.
  if (const std::optional<Peak> before = known(); before && before->flops >= best.flops)
    return *before;
  if (best.flops > 0) {
    const std::string text = fmt::format("{:.17g} {}", best.flops, best.date);
    ObjectCache(cacheDir).write(key(), llvm::ArrayRef(text.data(), text.size()));
  }
  return best;
}

PeakRecord peakOfCpu(ThreadPool &pool, const Target &host, DType operands, const std::string &cacheDir) {
  return {cacheDir, cpuFingerprint(host) + " " + peakSource(host, operands),
          [&pool, host, operands] { return measurePeakFlops(pool, host, operands); }};
}

Utilization::Utilization(double given, SheetPeak sheet, PeakRecord record, std::string compute)
    : given(given), sheet(std::move(sheet)), record(std::move(record)), compute(std::move(compute)) {
  if (given < 0)
    this->sheet = {};
  if (given <= 0)
    measured = this->record.get();
}

double Utilization::peak() const { return given > 0 ? given : sheet.flops > 0 ? sheet.flops : measured.flops; }

const char *Utilization::of() const {
  return given > 0 ? "given" : sheet.flops > 0 ? "sheet" : measured.flops > 0 ? "measured" : "";
}

std::string Utilization::describe() const {
  if (given > 0 || peak() <= 0)
    return "";
  const std::string reached =
      record.by.empty() ? inWords(measured.flops) : fmt::format("{} by {}", inWords(measured.flops), record.by);
  if (sheet.flops <= 0)
    return fmt::format("MFU is a share of {} in {}, measured {}", reached, compute, measured.date);
  std::string text =
      fmt::format("MFU is a share of {} in {}, by the data sheet of {}", inWords(sheet.flops), compute, sheet.of);
  if (measured.flops > 0)
    text += fmt::format("; mfu_measured of {}, measured {}", reached, measured.date);
  return text;
}

Utilization::Shares Utilization::at(double rate, const std::function<void(const std::string &)> &say) {
  while (measured.flops > 0 && rate > measured.flops && remeasured < mostRemeasured) {
    ++remeasured;
    const Peak before = measured;
    measured = record.again();
    if (measured.flops > before.flops)
      say(fmt::format("note: {}, the peak measured {}, is less than this run reaches: something else ran then. It is "
                      "{} from now on",
                      inWords(before.flops), before.date, inWords(measured.flops)));
  }
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  const Shares s{peak() > 0 ? rate / peak() : none,
                 peak() != measured.flops && measured.flops > 0 ? rate / measured.flops : none};
  if ((s.mfu > 1 || s.measured > 1) && !explained) {
    explained = true;
    const std::string counted = "MFU's formula counts operations that this plan does not execute";
    say(given > 0 ? fmt::format("note: MFU is above 100%: log.mfu_peak, {}, is less than this run reaches, or {}",
                                inWords(given), counted)
        : s.mfu > 1 && sheet.flops > 0
            ? fmt::format("note: MFU is above 100% of the data sheet of {}: {}", sheet.of, counted)
            : fmt::format("note: {} is above 100%: something else ran whenever the peak was measured, or {}; "
                          "log.mfu_peak sets another peak",
                          sheet.flops > 0 ? "mfu_measured" : "MFU", counted));
  }
  return s;
}

}  // namespace gptc
