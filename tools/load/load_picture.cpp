// The cumulative distributions of a load test: at each time, the share of requests or tokens that took no longer.
#include "tools/load/load_report.h"

#include "support/svg.h"

#include <algorithm>

namespace gptc::load {

namespace {

constexpr double width = 960, height = 400, top = 76, bottom = 60, panel = 390;
constexpr size_t mostSteps = 400;  // that are drawn of a curve: more would not be seen

/// One distribution, from `left` on; its axis of time is logarithmic.
void draw(SvgDrawing &d, double left, const std::string &name, const Distribution &values, const char *colour) {
  const double right = left + panel, low = height - bottom;
  auto y = [&](double share) { return low - share * (low - top); };
  d.text(left, top - 14, fmt::format("{}, {} values", name, values.sorted.size()), "start", 13);
  for (double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    d.line(left, y(share), right, y(share), "#e4e4e4");
    d.text(left - 8, y(share) + 4, fmt::format("{:.0f}%", 100 * share), "end");
  }
  d.text((left + right) / 2, height - 14, "milliseconds", "middle");
  if (values.sorted.empty()) {
    d.text((left + right) / 2, y(0.5) - 6, "nothing was measured", "middle");
    return;
  }
  // Chunks that come together are next to no time apart: they stand at the left end.
  const double most = std::max(values.most(), 2e-3), from = std::max(values.sorted.front(), most / 5000) * 0.8,
               to = std::max(most * 1.25, from * 4);
  auto x = [&](double ms) { return left + std::log(std::max(ms, from) / from) / std::log(to / from) * panel; };
  std::vector<double> ticks = svgTicks(from, to);
  if (ticks.size() > 9)  // powers of ten alone
    std::erase_if(ticks, [](double t) { return std::abs(std::remainder(std::log10(t), 1)) > 0.01; });
  for (double t : ticks) {
    d.line(x(t), top, x(t), low, "#e4e4e4");
    d.text(x(t), low + 18, fmt::format("{:.4g}", t), "middle");
  }
  SvgDrawing::Points steps = {{left, y(0)}};
  const size_t n = values.sorted.size(), count = std::min(n, mostSteps);
  for (size_t i = 0; i < count; ++i) {
    const size_t rank = (i + 1) * n / count;  // 1 to n
    const double at = x(values.sorted[rank - 1]);
    steps.push_back({at, steps.back().second});
    steps.push_back({at, y(double(rank) / double(n))});
  }
  steps.push_back({right, y(1)});
  d.path(steps, colour, 2);
  for (double percent : {50.0, 90.0, 99.0}) {
    const double ms = values.at(percent), at = x(ms);
    const bool isRight = at > left + 0.7 * panel;
    d.dot(at, y(percent / 100), colour, true);
    d.text(at + (isRight ? -10 : 10), y(percent / 100) + 14,
           fmt::format("{} {:.4g} ms", percent == 50 ? "median" : fmt::format("p{:.0f}", percent), ms),
           isRight ? "end" : "start");
  }
}

}  // namespace

std::string LoadReport::picture() const {
  SvgDrawing d(
      width, height,
      fmt::format("{}: {} requests, {}, {:.1f} output tokens/s{}", asked.model, completed,
                  asked.rate ? std::isinf(*asked.rate) ? "all at once" : fmt::format("{:.4g} in a second", *asked.rate)
                             : fmt::format("{} client{}", asked.clients, asked.clients == 1 ? "" : "s"),
                  perSecond(outputTokens), failed() ? fmt::format(", {} failed", failed()) : ""));
  draw(d, 60, "Time to first token", ttft, "#1f77b4");
  draw(d, 540, "Inter-token latency", itl, "#d62728");
  return d.done();
}

}  // namespace gptc::load
