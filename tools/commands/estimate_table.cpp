#include "tools/commands/estimate_table.h"

#include "support/words.h"
#include "tools/estimate/certainty.h"
#include "tools/estimate/pictures.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <fmt/format.h>

#include <cmath>

namespace gptc {

using json = nlohmann::ordered_json;

json jsonOf(const Estimate &e, const RunTokens &tokens, const ClusterConfig &c) {
  const Strategy &s = e.strategy;
  json j = {{"gpus", s.gpus}, {"strategy", s.name()}};
  if (!e.problem.empty()) {
    j["problem"] = e.problem;
    j["remedy"] = e.remedy;
    return j;
  }
  const double days = e.days(tokens), cost = days * 24 * double(s.gpus) * c.limits.price;
  j.update(json{{"s_per_step", e.step},
                {"tokens_per_s", e.tokensPerSecond},
                {"days", days},
                {"gpu_days", days * double(s.gpus)},
                {"mfu", e.mfu},
                {"hfu", e.hfu},
                {"bytes_resident", int64_t(e.bytesResident())},
                {"bytes_peak", int64_t(e.bytesPeak())},
                {"oom", e.outOfMemory || e.hostOutOfMemory},
                {"binds", e.binds}});
  if (c.limits.price > 0)
    j["cost"] = {{"amount", cost}, {"currency", c.limits.currency}};
  const auto &[low, high, byDefault] = e.sure;
  const Certainty ofDays = certaintyOfDays(e.sure, tokens);
  j["interval"] = {{"confidence", 0.9},
                   {"by", byDefault ? "default" : "fit"},
                   {"of", byDefault || c.software.scatter ? "run" : "mean"},
                   {"source", sourceOf(e.sure, c)},
                   {"s_per_step", {low * e.step, high * e.step}},
                   {"tokens_per_s", {e.tokensPerSecond / high, e.tokensPerSecond / low}},
                   {"days", {ofDays.low * days, finiteOrNull<json>(ofDays.high * days)}}};
  if (c.limits.price > 0)
    j["interval"]["cost"] = {ofDays.low * cost, finiteOrNull<json>(ofDays.high * cost)};
  j["never_seen"] = e.neverSeen;
  j["tokens"] = tokens.value;
  j["tokens_per_step"] = e.tokensPerStep;
  j["zero_stage"] = s.zeroStage;
  j["data"] = s.data();
  j["tensor"] = s.tensor;
  j["pipeline"] = s.pipeline;
  j["micro_batch"] = s.microBatch;
  j["accumulate"] = s.accumulate;
  j["remat"] = s.remat ? "full" : "none";
  j["predicted_only"] = e.predictedOnly;
  j["memory_by"] = e.planned ? "plan" : "formula";
  j["times_by"] = e.byCode ? "code" : "formula";
  j["seconds"] = {{"compute", e.compute}, {"recompute", e.recompute}, {"bubble", e.bubble}, {"reduce", e.reduce},
                  {"gather", e.gather},   {"exchange", e.exchange},   {"hidden", e.hidden}, {"optimizer", e.optimizer},
                  {"host", e.host},       {"overhead", e.overhead}};
  j["bytes"] = {{"parameters", int64_t(e.parameters)}, {"gradients", int64_t(e.gradients)},
                {"optimizer", int64_t(e.moments)},     {"activations", int64_t(e.activations)},
                {"gathered", int64_t(e.inFlight)},     {"reserved", int64_t(e.reserved)}};
  for (const auto &[name, bytes] : largest(e.buffers, 8))
    j["largest"].push_back({{"name", name}, {"bytes", int64_t(bytes)}});
  return j;
}

namespace {

/// Fixed `digits` decimals, or 3 significant digits if that does not fit `room`.
std::string within(double v, int digits, size_t room) {
  const std::string text = fmt::format("{:.{}f}", v, digits);
  return text.size() <= room ? text : fmt::format("{:.3g}", v);
}

/// Days in a column of `room` characters, with tenths if a whole number would say little.
std::string daysWithin(double days, bool tenths, size_t room) {
  return days < 0.1 ? formatDays(days) : within(days, tenths || days < 10 ? 1 : 0, room);
}

/// "53 to 61", "53 or more", or hours where the forecast is in hours; at most 18 characters.
std::string interval(double days, const Certainty &sure) {
  const double unit = days < 0.1 ? 24 : 1;
  auto end = [&](double factor) {
    const double v = days * unit * factor;
    return v >= 10 && v < 1e6 ? fmt::format("{:.0f}", v) : fmt::format("{:.2g}", v);
  };
  const char *hours = unit > 1 ? " h" : "";
  return std::isfinite(sure.high) ? fmt::format("{} to {}{}", end(sure.low), end(sure.high), hours)
                                  : fmt::format("{}{} or more", end(sure.low), hours);
}

std::string row(const Estimate &e, const RunTokens &tokens, const ClusterConfig &c) {
  const Strategy &s = e.strategy;
  if (!e.problem.empty())
    return fmt::format("{:>5}  {:<34} {}{}\n", s.gpus, s.name(), e.problem,
                       e.remedy.empty() ? "" : fmt::format(" ({})", e.remedy));
  const double days = e.days(tokens);
  const std::string cost =
      c.limits.price > 0 ? fmt::format("{:>11}", within(days * 24 * double(s.gpus) * c.limits.price, 0, 10)) : "";
  return fmt::format(
      "{:>5}  {:<34} {:>4} x {:<4} {:>8} {:>10} {:>6.1f} {:>6.1f} {:>8} {:>18} {:>9}{} {:>10} {:>10}  {}{}{}\n", s.gpus,
      s.name(), s.microBatch, s.accumulate, fmt::format("{:.3g}", e.step), fmt::format("{:.4g}", e.tokensPerSecond),
      100 * e.mfu, 100 * e.hfu, daysWithin(days, true, 8), interval(days, certaintyOfDays(e.sure, tokens)),
      daysWithin(days * double(s.gpus), false, 9), cost, formatBytes(e.bytesResident()), formatBytes(e.bytesPeak()),
      e.outOfMemory       ? "OUT OF MEMORY"
      : e.hostOutOfMemory ? "OUT OF HOST MEMORY"
                          : e.binds,
      e.predictedOnly                                                    ? " (forecast only)"
      : c.software.isGptc() && !c.device.isCpu && !e.planned && e.fits() ? " (peak: at least)"
                                                                         : "",
      e.neverSeen.empty() ? "" : " *");
}

std::string header(const ClusterConfig &c) {
  const std::string cost = c.limits.price > 0 ? fmt::format("{:>11}", c.limits.currency) : "";
  return fmt::format("{:>5}  {:<34} {:>4} x {:<4} {:>8} {:>10} {:>6} {:>6} {:>8} {:>18} {:>9}{} {:>10} {:>10}  {}\n",
                     "GPUs", "strategy", "mb", "acc", "s/step", "tokens/s", "MFU %", "HFU %", "days", "90% interval",
                     "GPU-days", cost, "resident", "peak", "bound by");
}

/// "9000 to 12000 USD".
std::string intervalOfCost(double cost, const Certainty &sure, const std::string &currency) {
  const std::string low = within(sure.low * cost, 0, 10);
  return std::isfinite(sure.high) ? fmt::format("{} to {} {}", low, within(sure.high * cost, 0, 10), currency)
                                  : fmt::format("{} {} or more", low, currency);
}

std::string howSure(const Estimate &e, const RunTokens &tokens, const ClusterConfig &c) {
  const double days = e.days(tokens), cost = days * 24 * double(e.strategy.gpus) * c.limits.price;
  const Certainty ofDays = certaintyOfDays(e.sure, tokens);
  return fmt::format("{} GPUs, {}: {}{}, {:.3g} to {:.3g} tokens/s{} with 90% confidence: {}{}.", e.strategy.gpus,
                     e.strategy.name(), interval(days, ofDays), days < 0.1 ? "" : " days",
                     e.tokensPerSecond / e.sure.high, e.tokensPerSecond / e.sure.low,
                     cost > 0 ? ", " + intervalOfCost(cost, ofDays, c.limits.currency) : "", sourceOf(e.sure, c),
                     tokens.isGiven ? "" : "; days also by the doubt of tokens, as if independent of speed");
}

}  // namespace

std::string tableOf(const std::vector<Estimate> &all, const RunTokens &tokens, const ClusterConfig &c) {
  std::string text = header(c);
  for (const Estimate &e : all)
    text += row(e, tokens, c);
  return text;
}

std::vector<std::string> notesOf(const std::vector<Estimate> &all, const Estimate &best, const RunTokens &tokens,
                                 const ClusterConfig &c) {
  std::vector<std::string> notes;
  if (llvm::any_of(all, [](const Estimate &e) { return e.byCode; }))
    notes.push_back("s/step by the code of the plans' kernels");
  if (best.fits())
    notes.push_back(howSure(best, tokens, c));
  std::vector<std::string> untried;
  for (const Estimate &e : all)
    for (const std::string &what : e.neverSeen)
      if (!llvm::is_contained(untried, what))
        untried.push_back(what);
  if (!untried.empty())
    notes.push_back(
        fmt::format("* never seen: no log of {} has {}. No interval counts that.", c.name, llvm::join(untried, ", ")));
  return notes;
}

std::vector<std::string> memoryNotesOf(const std::vector<Estimate> &all, const ClusterConfig &c) {
  std::vector<std::string> notes;
  for (const Estimate &e : all)
    if (e.outOfMemory) {
      std::vector<std::string> parts;
      for (const auto &[name, bytes] : largest(e.buffers, 4))
        parts.push_back(fmt::format("{} {}", formatBytes(bytes), name));
      notes.push_back(fmt::format("{} GPUs, {}: {} of {}; most of it {}", e.strategy.gpus, e.strategy.name(),
                                  formatBytes(e.bytesPeak()), formatBytes(c.device.memory), llvm::join(parts, ", ")));
    }
  for (const Estimate &e : all)
    if (e.problem.empty() && e.hostOutOfMemory)
      notes.push_back(fmt::format("{} GPUs, {}: {} GPUs keep {} in the memory of their node, which has {}",
                                  e.strategy.gpus, e.strategy.name(), std::min(c.node.devices, e.strategy.gpus),
                                  formatBytes(e.hostBytes), formatBytes(c.node.hostMemory)));
  return notes;
}

}  // namespace gptc
