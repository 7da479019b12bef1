// The roofline (Williams, Waterman & Patterson 2009): FLOP/s against FLOP per byte, both logarithmic, bounded by the
// lesser of peak and bandwidth times intensity.
#include "support/svg.h"
#include "tools/study/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace gptc {

namespace {

constexpr double least = 5e-4;  // smallest share of the step that is drawn
constexpr double giga = 1e9;
constexpr double width = 960, height = 560, left = 80, right = 200, top = 50, bottom = 60;

}  // namespace

std::string rooflineSvg(const TuneReport &report) {
  struct Mark {
    const TunedKernel *k;
    double intensity, before, after, share;
  };
  std::vector<Mark> marks;
  double step = 0;
  for (const TunedKernel &k : report.kernels)
    step += k.calls * k.ms;
  for (const TunedKernel &k : report.kernels)
    if (k.calls * k.ms > least * step && k.flops > 0 && k.bytes > 0)
      marks.push_back(
          {&k, k.flops / k.bytes, k.flops / (1e-3 * k.baseMs), k.flops / (1e-3 * k.ms), k.calls * k.ms / step});
  const double memory = report.speed.memory.best();
  const double peak = std::max(report.speed.peakFp32, report.speed.peakBf16);
  // Axes span whole powers of two around the data.
  double x0 = -3, x1 = 8, y1 = std::ceil(std::log2(std::max(peak / giga, 1.0))), y0 = y1 - 8;
  for (const Mark &m : marks) {
    x0 = std::min(x0, std::floor(std::log2(m.intensity)));
    x1 = std::max(x1, std::ceil(std::log2(m.intensity)));
    y0 = std::min(y0, std::floor(std::log2(std::min(m.before, m.after) / giga)));
  }
  auto x = [&](double intensity) { return left + (std::log2(intensity) - x0) / (x1 - x0) * (width - left - right); };
  auto y = [&](double flops) { return top + (y1 - std::log2(flops / giga)) / (y1 - y0) * (height - top - bottom); };
  std::string svg;
  auto put = [&]<typename... A>(fmt::format_string<A...> text, A &&...args) {
    fmt::format_to(std::back_inserter(svg), text, std::forward<A>(args)...);
  };
  put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n",
      width, height);
  put("<rect width=\"{}\" height=\"{}\" fill=\"white\"/>\n", width, height);
  for (double e = x0; e <= x1; ++e) {
    const double at = x(std::exp2(e));
    put("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#e4e4e4\"/>\n", at, top, height - bottom);
    put("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", at, height - bottom + 18,
        e < 0 ? fmt::format("1/{}", std::exp2(-e)) : fmt::format("{}", std::exp2(e)));
  }
  for (double e = y0; e <= y1; ++e) {
    const double at = y(giga * std::exp2(e));
    put("<line x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\" stroke=\"#e4e4e4\"/>\n", at, left, width - right);
    put("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>\n", left - 8, at + 4, std::exp2(e));
  }
  put("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">FLOP per byte of operands and results</text>\n",
      (left + width - right) / 2, height - 16);
  put("<text transform=\"translate(20 {}) rotate(-90)\" text-anchor=\"middle\">GFLOP/s</text>\n",
      (top + height - bottom) / 2);
  auto roof = [&](double peak, const char *name) {
    const double ridge = peak / memory, from = std::max(std::exp2(x0), giga * std::exp2(y0) / memory);
    put("<polyline fill=\"none\" stroke=\"#444\" stroke-width=\"1.5\" points=\"{:.1f},{:.1f} {:.1f},{:.1f} "
        "{:.1f},{:.1f}\"/>\n",
        x(from), y(from * memory), x(ridge), y(peak), x(std::exp2(x1)), y(peak));
    put("<text x=\"{}\" y=\"{:.1f}\">{} {:.0f} GFLOP/s</text>\n", width - right + 8, y(peak) + 4, name, peak * 1e-9);
  };
  if (memory > 0) {
    roof(report.speed.peakFp32, "fp32");
    if (report.speed.peakBf16 > 1.2 * report.speed.peakFp32)
      roof(report.speed.peakBf16, "bf16");
    put("<text x=\"{}\" y=\"{}\">memory {:.0f} GB/s</text>\n", width - right + 8, height - bottom, memory * 1e-9);
  }
  for (const Mark &m : marks) {
    const double r = 3 + 22 * std::sqrt(m.share);
    put("<g><title>{}: {:.1f}% of the step, {:.1f} -> {:.1f} GFLOP/s, {}</title>", svgEscaped(m.k->place),
        100 * m.share, m.before * 1e-9, m.after * 1e-9, svgEscaped(m.k->best.str()));
    put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"none\" stroke=\"#888\"/>", x(m.intensity), y(m.before),
        r);
    put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\" fill-opacity=\"0.55\"/></g>\n", x(m.intensity),
        y(m.after), r, m.k->best == m.k->base ? "#4477aa" : "#cc6633");
  }
  put("<text x=\"{}\" y=\"28\" font-size=\"15\">Kernels of a training step under the roofline</text>\n", left);
  put("<circle cx=\"{}\" cy=\"24\" r=\"6\" fill=\"none\" stroke=\"#888\"/><text x=\"{}\" y=\"28\">default</text>\n",
      left + 390, left + 402);
  put("<circle cx=\"{}\" cy=\"24\" r=\"6\" fill=\"#cc6633\" fill-opacity=\"0.55\"/><text x=\"{}\" "
      "y=\"28\">tuned</text>\n",
      left + 470, left + 482);
  put("<circle cx=\"{}\" cy=\"24\" r=\"6\" fill=\"#4477aa\" fill-opacity=\"0.55\"/><text x=\"{}\" y=\"28\">the default "
      "is "
      "best; area: share of the step</text>\n",
      left + 540, left + 552);
  svg += "</svg>\n";
  return svg;
}

}  // namespace gptc
