#include "tools/estimate/pictures.h"

#include "support/svg.h"
#include "support/words.h"

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

std::string daysPicture(const std::vector<Estimate> &all, double tokens, const ClusterConfig &cluster) {
  constexpr double width = 900, height = 520, left = 70, right = 230, top = 50, bottom = 60;
  std::map<std::string, std::vector<const Estimate *>> lines;
  double x0 = 1e30, x1 = 0, y0 = 1e30, y1 = 0;
  auto extend = [&](double x, double y) {
    x0 = std::min(x0, x), x1 = std::max(x1, x), y0 = std::min(y0, y), y1 = std::max(y1, y);
  };
  for (const Estimate &e : all)
    if (e.problem.empty()) {
      // If checkpointing is left to the forecast, it may change along a line.
      Strategy s = e.strategy;
      s.remat = false;
      lines[s.name()].push_back(&e);
      extend(double(e.strategy.gpus), e.days(tokens));
    }
  for (const Observation &o : cluster.observations)
    if (o.days > 0)
      extend(double(o.gpus), o.days * tokens / o.tokens);
  // As in tables: if days fall below a tenth, all are shown as hours.
  const double perDay = y0 < 0.1 ? 24 : 1;
  SvgDrawing d(width, height,
               fmt::format("{} for {:.3g} tokens on {}", perDay > 1 ? "Hours" : "Days", tokens, cluster.name));
  if (x1 == 0)
    return d.done();
  x0 *= 0.85, x1 *= 1.18, y0 *= 0.8, y1 *= 1.25;
  auto x = [&](double n) { return left + std::log(n / x0) / std::log(x1 / x0) * (width - left - right); };
  auto y = [&](double n) { return height - bottom - std::log(n / y0) / std::log(y1 / y0) * (height - top - bottom); };
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
  size_t index = 0;
  double legend = top + 10;
  for (const auto &[name, points] : lines) {
    const char *colour = colours[index++ % std::size(colours)];
    const Estimate *before = nullptr;
    for (const Estimate *e : points) {
      const double px = x(double(e->strategy.gpus)), py = y(e->days(tokens));
      if (before)
        d.line(x(double(before->strategy.gpus)), y(before->days(tokens)), px, py, colour, 1.5);
      if (e->fits())
        d.dot(px, py, colour, true);
      else
        d.cross(px, py, colour);
      before = e;
    }
    d.line(width - right + 16, legend - 4, width - right + 40, legend - 4, colour, 2);
    d.text(width - right + 46, legend, name);
    legend += 18;
  }
  bool seen = false;
  for (const Observation &o : cluster.observations)
    if (o.days > 0) {
      d.dot(x(double(o.gpus)), y(o.days * tokens / o.tokens), "#000000", false);
      seen = true;
    }
  if (seen) {
    d.dot(width - right + 28, legend - 4, "#000000", false);
    d.text(width - right + 46, legend, "observed");
    legend += 18;
  }
  if (llvm::any_of(all, [](const Estimate &e) { return e.problem.empty() && !e.fits(); })) {
    d.cross(width - right + 28, legend - 4, "#000000");
    d.text(width - right + 46, legend, "out of memory");
  }
  return d.done();
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
  d.text(x(at) + 6, y + 16, formatSeconds(at));
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
