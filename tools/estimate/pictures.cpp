#include "tools/estimate/pictures.h"

#include "support/svg.h"
#include "support/words.h"
#include "tools/estimate/certainty.h"

#include "llvm/ADT/STLExtras.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

namespace gptc {

namespace {

constexpr const char *colours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                   "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f"};

/// A named part of a bar chart.
struct Part {
  std::string name;
  double amount;
};

}  // namespace

std::vector<std::pair<std::string, double>> largest(const Buffers &buffers, size_t most) {
  std::vector<std::pair<std::string, double>> all(buffers.begin(), buffers.end());
  llvm::stable_sort(all, [](const auto &a, const auto &b) { return a.second > b.second; });
  double sum = 0;
  for (const auto &b : all)
    sum += b.second;
  while (!all.empty() && (all.size() > most || all.back().second < 1e-3 * sum))
    all.pop_back();
  return all;
}

namespace {

/// Days of a strategy, or of a row of the log.
double daysOf(const Observation &o, double tokens) { return o.days * tokens / o.tokens; }

/// As in tables: if the fewest days fall below a tenth, all are shown as hours.
double unitsPerDay(double fewest) { return fewest < 0.1 ? 24 : 1; }

std::string daysTitle(double perDay, double tokens, const ClusterConfig &cluster) {
  return fmt::format("{} for {:.3g} tokens on {}", perDay > 1 ? "Hours" : "Days", tokens, cluster.name);
}

/// Days between which a run ends with 90% confidence. Without an upper end it is drawn up to ten times the forecast.
struct DaysSpan {
  double low, high;
  bool hasEnd;
  DaysSpan(const Estimate &e, const RunTokens &tokens) {
    const Certainty sure = certaintyOfDays(e.sure, tokens);
    hasEnd = std::isfinite(sure.high);
    low = e.days(tokens) * sure.low;
    high = e.days(tokens) * (hasEnd ? sure.high : 10);
  }
};

/// An interval as a line with caps, along x or along y. Without an end it has no cap there.
void whisker(SvgDrawing &d, double x0, double y0, double x1, double y1, const char *colour, bool hasEnd = true) {
  d.line(x0, y0, x1, y1, colour);
  const double cx = y0 == y1 ? 0 : 3, cy = y0 == y1 ? 3 : 0;
  d.line(x0 - cx, y0 - cy, x0 + cx, y0 + cy, colour);
  if (hasEnd)
    d.line(x1 - cx, y1 - cy, x1 + cx, y1 + cy, colour);
}

/// One number of GPUs: a bar for each strategy, and a circle for each row of the log with as many.
std::string barsOfDays(const std::vector<const Estimate *> &bars, const RunTokens &tokens,
                       const ClusterConfig &cluster) {
  constexpr double width = 900, left = 250, right = 190, top = 60, each = 30;
  const int64_t gpus = bars.front()->strategy.gpus;
  std::vector<const Observation *> seen;
  for (const Observation &o : cluster.observations)
    if (o.days > 0 && o.gpus == gpus)
      seen.push_back(&o);
  double fewest = 1e300, most = 0;
  auto extend = [&](double low, double high) { fewest = std::min(fewest, low), most = std::max(most, high); };
  for (const Estimate *e : bars)
    extend(e->days(tokens), DaysSpan(*e, tokens).high);
  for (const Observation *o : seen)
    extend(daysOf(*o, tokens), daysOf(*o, tokens));
  const double perDay = unitsPerDay(fewest);
  SvgDrawing d(width, top + each * double(bars.size() + seen.size() + 2),
               fmt::format("{}, {} GPUs", daysTitle(perDay, tokens, cluster), gpus));
  auto x = [&](double days) { return left + days / most * (width - left - right); };
  double y = top;
  for (const auto &[i, e] : llvm::enumerate(bars)) {
    const double days = e->days(tokens);
    const DaysSpan span(*e, tokens);
    d.box(left, y, std::max(1.0, x(days) - left), each - 10, e->fits() ? colours[i % std::size(colours)] : "#cccccc");
    whisker(d, x(span.low), y + (each - 10) / 2, x(span.high), y + (each - 10) / 2, "#000000", span.hasEnd);
    d.text(left - 10, y + 14, e->strategy.name(), "end");
    const std::string high = span.hasEnd ? fmt::format("to {:.3g}", perDay * span.high) : "or more";
    d.text(x(span.high) + 8, y + 14,
           fmt::format("{:.3g} ({:.3g} {}){}", perDay * days, perDay * span.low, high,
                       e->fits() ? "" : ", out of memory"));
    y += each;
  }
  for (const Observation *o : seen) {
    d.dot(x(daysOf(*o, tokens)), y + (each - 10) / 2, "#000000", false);
    d.text(left - 10, y + 14, o->name, "end");
    d.text(x(daysOf(*o, tokens)) + 10, y + 14, fmt::format("{:.3g} observed", perDay * daysOf(*o, tokens)));
    y += each;
  }
  whisker(d, left, y + 10, left + 24, y + 10, "#000000");
  d.text(left + 32, y + 14, "90% interval");
  return d.done();
}

/// Days over GPUs, both axes logarithmic.
class LinesOfDays {
public:
  LinesOfDays(const std::vector<const Estimate *> &all, const RunTokens &tokens, const ClusterConfig &cluster)
      : all(all), tokens(tokens), cluster(cluster) {
    for (const Estimate *e : all) {
      const double days = e->days(tokens);
      const DaysSpan span(*e, tokens);
      extend(double(e->strategy.gpus), span.low, span.high);
      perDay = unitsPerDay(fewest = std::min(fewest, days));
    }
    for (const Observation &o : cluster.observations)
      if (o.days > 0) {
        extend(double(o.gpus), daysOf(o, tokens), daysOf(o, tokens));
        perDay = unitsPerDay(fewest = std::min(fewest, daysOf(o, tokens)));
      }
    x0 *= 0.85, x1 *= 1.18, y0 *= 0.8, y1 *= 1.25;
  }

  std::string drawn() {
    SvgDrawing d(width, height, daysTitle(perDay, tokens, cluster));
    axes(d);
    forecasts(d);
    legendOfMarks(d);
    return d.done();
  }

private:
  static constexpr double width = 900, height = 520, left = 70, right = 230, top = 50, bottom = 60;
  const std::vector<const Estimate *> &all;
  const RunTokens tokens;
  const ClusterConfig &cluster;
  double x0 = 1e30, x1 = 0, y0 = 1e300, y1 = 0, fewest = 1e300, perDay = 1;
  double legend = top + 10;

  void extend(double x, double low, double high) {
    x0 = std::min(x0, x), x1 = std::max(x1, x), y0 = std::min(y0, low), y1 = std::max(y1, high);
  }
  double x(double n) const { return left + std::log(n / x0) / std::log(x1 / x0) * (width - left - right); }
  double y(double n) const { return height - bottom - std::log(n / y0) / std::log(y1 / y0) * (height - top - bottom); }

  void axes(SvgDrawing &d) const {
    for (double t : svgTicks(perDay * y0, perDay * y1)) {
      d.line(left, y(t / perDay), width - right, y(t / perDay), "#e4e4e4");
      d.text(left - 8, y(t / perDay) + 4, fmt::format("{:.4g}", t), "end");
    }
    for (double n = 1; n <= x1; n *= 2)
      if (n >= x0) {
        d.line(x(n), top, x(n), height - bottom, "#e4e4e4");
        d.text(x(n), height - bottom + 18, fmt::format("{:.0f}", n), "middle");
      }
    d.text((left + width - right) / 2, height - 16, "GPUs", "middle");
  }

  /// A line per strategy. Equal ones stay apart: each has its own dashes, and points that come later are smaller.
  void forecasts(SvgDrawing &d) {
    static constexpr const char *dashes[] = {"", "9 5", "3 3", "12 4 3 4"};
    std::map<std::string, std::vector<const Estimate *>> lines;
    for (const Estimate *e : all) {
      // If checkpointing is left to the forecast, it may change along a line.
      Strategy s = e->strategy;
      s.remat = false;
      lines[s.name()].push_back(e);
    }
    size_t index = 0;
    for (const auto &[name, points] : lines) {
      const char *colour = colours[index % std::size(colours)], *dash = dashes[index % std::size(dashes)];
      const double radius = std::max(2.5, 6.0 - double(index));
      const Estimate *before = nullptr;
      for (const Estimate *e : points) {
        const double px = x(double(e->strategy.gpus)), days = e->days(tokens);
        if (before)
          d.line(x(double(before->strategy.gpus)), y(before->days(tokens)), px, y(days), colour, 1.5, dash);
        const DaysSpan span(*e, tokens);
        whisker(d, px, y(span.low), px, y(span.high), colour, span.hasEnd);
        if (e->fits())
          d.dot(px, y(days), colour, true, radius);
        else
          d.cross(px, y(days), colour);
        before = e;
      }
      d.line(width - right + 16, legend - 4, width - right + 40, legend - 4, colour, 2, dash);
      d.text(width - right + 46, legend, name);
      legend += 18;
      ++index;
    }
  }

  void legendOfMarks(SvgDrawing &d) {
    const double at = width - right + 28;
    auto entry = [&](const char *name) {
      d.text(width - right + 46, legend, name);
      legend += 18;
    };
    if (llvm::any_of(all, [](const Estimate *e) { return e->fits(); })) {
      d.dot(at, legend - 4, "#000000", true);
      entry("forecast, fits");
    }
    whisker(d, at, legend - 10, at, legend + 2, "#000000");
    entry("90% interval");
    if (llvm::any_of(all, [](const Estimate *e) { return !e->fits(); })) {
      d.cross(at, legend - 4, "#000000");
      entry("out of memory");
    }
    bool seen = false;
    for (const Observation &o : cluster.observations)
      if (o.days > 0) {
        d.dot(x(double(o.gpus)), y(daysOf(o, tokens)), "#000000", false);
        seen = true;
      }
    if (seen) {
      d.dot(at, legend - 4, "#000000", false);
      entry("observed, of the log");
    }
  }
};

}  // namespace

std::string daysPicture(const std::vector<Estimate> &all, const RunTokens &tokens, const ClusterConfig &cluster) {
  std::vector<const Estimate *> possible;
  for (const Estimate &e : all)
    if (e.problem.empty())
      possible.push_back(&e);
  if (possible.empty())
    return SvgDrawing(900, 520, daysTitle(1, tokens, cluster)).done();
  const int64_t gpus = possible.front()->strategy.gpus;
  if (llvm::all_of(possible, [&](const Estimate *e) { return e->strategy.gpus == gpus; }))
    return barsOfDays(possible, tokens, cluster);
  return LinesOfDays(possible, tokens, cluster).drawn();
}

std::string stepPicture(const Estimate &e) {
  constexpr double width = 900, left = 220, right = 90, top = 60, each = 34;
  std::vector<Part> parts = {{"forward and backward", e.compute},
                             {"computed again", e.recompute},
                             {"pipeline waits", e.bubble},
                             {"gradients summed", e.reduce},
                             {"parameters gathered", e.gather},
                             {"hidden behind backward", -e.hidden},
                             {"activations exchanged", e.exchange},
                             {"optimizer", e.optimizer},
                             {"host", e.host},
                             {"per step", e.overhead}};
  llvm::erase_if(parts, [&](const Part &p) { return std::abs(p.amount) < 1e-4 * e.step; });
  const double height = top + each * double(parts.size() + 1) + 40;
  SvgDrawing d(width, height,
               fmt::format("One step with {} GPUs, {}: {}", e.strategy.gpus, e.strategy.name(), formatSeconds(e.step)));
  double total = 0, most = 0;
  for (const Part &p : parts) {
    total += p.amount;
    most = std::max(most, total);
  }
  most = std::max(most, total * e.sure.high);
  auto x = [&](double s) { return left + s / most * (width - left - right); };
  double at = 0, y = top;
  for (const auto &[i, p] : llvm::enumerate(parts)) {
    const double from = std::min(at, at + p.amount);
    d.box(x(from), y, std::max(1.0, std::abs(p.amount) / most * (width - left - right)), each - 10,
          p.amount < 0 ? "#bbbbbb" : colours[i % std::size(colours)]);
    d.text(left - 10, y + 16, p.name, "end");
    d.text(x(std::max(at, at + p.amount)) + 6, y + 16,
           fmt::format("{}{}", p.amount < 0 ? "-" : "", formatSeconds(std::abs(p.amount))));
    at += p.amount;
    y += each;
  }
  d.box(left, y, std::max(1.0, at / most * (width - left - right)), each - 10, "#444444");
  d.text(left - 10, y + 16, "step", "end");
  d.text(x(at * e.sure.high) + 6, y + 16, formatSeconds(at));
  const double middle = y + (each - 10) / 2;
  whisker(d, x(at * e.sure.low), middle, x(at * e.sure.high), middle, "#000000");
  d.text(left, y + each + 12,
         fmt::format("90% interval: {} to {}", formatSeconds(at * e.sure.low), formatSeconds(at * e.sure.high)));
  return d.done();
}

std::string memoryPicture(const Estimate &e, const std::vector<double> &curve, const ClusterConfig &cluster) {
  constexpr double width = 1000, height = 460, left = 80, right = 380, top = 60, bottom = 50;
  SvgDrawing d(width, height,
               fmt::format("Memory of one of {} GPUs, {}: {} of {}", e.strategy.gpus, e.strategy.name(),
                           formatBytes(e.bytesPeak()), formatBytes(cluster.device.memory)));
  const double most = std::max(e.bytesPeak(), cluster.device.memory) * 1.05;
  auto y = [&](double bytes) { return height - bottom - bytes / most * (height - top - bottom); };
  const double always = e.bytesResident() + e.inFlight + e.reserved;
  double step = 0x1p20;
  while (most / step > 8)
    step *= 2;
  for (double t = step; t < most; t += step) {
    d.line(left, y(t), width - right, y(t), "#eeeeee");
    d.text(left - 8, y(t) + 4, formatBytes(t), "end");
  }
  // The constant part of every rank from the bottom up, then the pass.
  double at = 0;
  for (const auto &[i, part] :
       llvm::enumerate(std::initializer_list<Part>{{"parameters", e.parameters},
                                                   {"gradients", e.gradients},
                                                   {"optimizer state", e.moments},
                                                   {"gathered and reserved", e.inFlight + e.reserved}})) {
    d.box(left, y(at + part.amount), width - left - right, y(at) - y(at + part.amount), colours[i]);
    if (y(at) - y(at + part.amount) > 13)
      d.text(left + 8, (y(at) + y(at + part.amount)) / 2 + 4,
             fmt::format("{}  {}", part.name, formatBytes(part.amount)));
    at += part.amount;
  }
  const double peak = curve.empty() ? 1 : *std::max_element(curve.begin(), curve.end());
  const double scale = peak > 0 ? e.activations / peak : 0;  // ranks along tensor and pipeline hold a part
  std::vector<std::pair<double, double>> outline = {{left, y(always)}};
  for (size_t i = 0; i < curve.size(); ++i)
    outline.push_back({left + double(i) / double(std::max<size_t>(1, curve.size() - 1)) * (width - left - right),
                       y(always + scale * curve[i])});
  outline.push_back({width - right, y(always)});
  d.area(outline, colours[4]);
  d.line(left - 10, y(cluster.device.memory), width - right + 10, y(cluster.device.memory), "#d62728", 2);
  d.text(width - right + 14, y(cluster.device.memory) + 4,
         fmt::format("{} there are", formatBytes(cluster.device.memory)));
  d.text((left + width - right) / 2, height - 18, "one pass: forward, then backward", "middle");
  double label = top + 60;
  d.text(width - right + 30, label, "at the peak:");
  for (const auto &[name, bytes] : largest(e.buffers, 12))
    d.text(width - right + 30, label += 18, fmt::format("{:>10}  {}", formatBytes(bytes), name));
  // The areas by name, since a thin one has no room for its own.
  label = std::max(label + 24, height - bottom - 18 * 4);
  static constexpr const char *areas[] = {"activations of a pass", "gathered and reserved", "optimizer state",
                                          "gradients", "parameters"};
  for (const auto &[i, name] : llvm::enumerate(areas)) {
    const double row = label + 18 * double(i);
    d.box(width - right + 30, row - 10, 12, 12, colours[4 - i]);
    d.text(width - right + 50, row, name);
  }
  return d.done();
}

std::vector<std::string> networkAdvice(const std::vector<Estimate> &all, const ClusterConfig &cluster, double tokens) {
  const NetworkSpec &n = cluster.network;
  std::vector<std::string> lines;
  if (!(n.nominal > 0) || n.effective > 0.5 * n.nominal)
    return lines;
  const Estimate *worst = nullptr;
  double lost = 0;
  for (const Estimate &e : all) {
    if (!e.fits() || !(e.overNetwork > 0))
      continue;
    // Time that the nominal bandwidth would save.
    const double saved = e.overNetwork * (1 - n.effective / n.nominal), days = e.days(tokens) * saved / e.step;
    if (!worst || e.days(tokens) < worst->days(tokens)) {
      worst = &e;
      lost = days;
    }
  }
  if (!worst || lost < 0.01 * worst->days(tokens))
    return lines;
  const double perDay = worst->days(tokens) < 0.1 ? 24 : 1;
  lines.push_back(fmt::format("network: collectives between nodes run at {}, {:.0f}% of the nominal {}. With {} GPUs "
                              "and {} that costs {:.3g} of the "
                              "{:.3g} {}.",
                              formatBandwidth(n.effective), 100 * n.effective / n.nominal, formatBandwidth(n.nominal),
                              worst->strategy.gpus, worst->strategy.name(), perDay * lost, perDay * worst->days(tokens),
                              perDay > 1 ? "hours" : "days"));
  lines.push_back(
      "check: does every rank use its own adapter (NCCL_DEBUG=INFO names them; NCCL_SOCKET_IFNAME and NCCL_IB_HCA "
      "choose), or TCP where there is RDMA;\n"
      "       GPUDirect RDMA (NCCL_NET_GDR_LEVEL), and adapter and GPU below one PCIe switch; jumbo frames; other "
      "jobs on the same switch.\n"
      "       Measure with an all-reduce benchmark between two nodes, then accumulate: each step sends as much, "
      "whatever it holds.");
  return lines;
}

}  // namespace gptc
