#include "tools/report/chart.h"

#include "support/svg.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gptc {

namespace {

constexpr double width = 400, height = 250, left = 52, right = 388, top = 40, bottom = 222;
constexpr size_t columns = 250;                    // no screen shows more of this width
constexpr size_t mostDots = 40;                    // more would hide the line
constexpr double largest = 1e280, least = 1e-280;  // no axis overflows
constexpr double ratioForLog = 20;
constexpr const char *grid = "var(--grid)";

/// What is between two values of x: their places on the picture.
struct Axis {
  double low, high, from, to;
  bool isLog = false;
  double at(double v) const {
    const double share =
        isLog ? (std::log(v) - std::log(low)) / (std::log(high) - std::log(low)) : (v - low) / (high - low);
    return from + share * (to - from);
  }
};

/// A span of y with some room around it.
Axis axisOfY(double low, double high, ChartScale scale) {
  Axis y{low, high, bottom, top};
  y.isLog = scale == ChartScale::byRatio && low >= least && std::log(high) - std::log(low) >= std::log(ratioForLog);
  if (y.isLog) {
    const double room = std::exp(0.04 * (std::log(high) - std::log(low)));
    y.low = low / room, y.high = high * room;
    return y;
  }
  if (scale == ChartScale::fromZero)
    y.low = std::min(0.0, low), y.high = std::max(0.0, high);
  if (y.low == y.high) {
    const double room = y.low == 0 ? 1 : 0.05 * std::abs(y.low);
    y.low -= room, y.high += room;
  }
  const double room = 0.05 * (y.high - y.low);
  if (y.low != 0)
    y.low -= room;
  if (y.high != 0)
    y.high += room;
  return y;
}

/// The values that an axis shows, with their texts.
std::vector<std::pair<double, std::string>> marksOf(const Axis &a, int count) {
  std::vector<std::pair<double, std::string>> marks;
  if (a.isLog) {
    std::vector<double> ticks = svgTicks(a.low, a.high);
    if (ticks.size() > 8)  // powers of ten alone
      std::erase_if(ticks, [](double t) { return std::abs(std::remainder(std::log10(t), 1)) > 0.01; });
    const size_t every = ticks.size() / 8 + 1;
    for (size_t i = 0; i < ticks.size(); i += every)
      marks.push_back({ticks[i], shortNumber(ticks[i])});
    return marks;
  }
  const std::vector<double> ticks = evenTicks(a.low, a.high, count);
  const double apart = ticks.size() > 1 ? ticks[1] - ticks[0] : 0;
  // As many digits as tell neighbours apart.
  const double most = std::max(std::abs(a.low), std::abs(a.high));
  const bool isPlain = apart >= 1e-7 && apart < 1 && most < 1e4 && (apart >= 1e-4 || most >= 100 * apart);
  const int digits = isPlain ? int(std::ceil(-std::log10(apart) - 1e-9)) : 0;
  for (double t : ticks)
    marks.push_back({t, isPlain ? fmt::format("{:.{}f}", t, digits) : shortNumber(t)});
  return marks;
}

/// The steps that an axis shows: whole ones, of which no two have the same text.
std::vector<std::pair<double, std::string>> marksOfSteps(const Axis &a, int count) {
  const std::vector<double> ticks = evenTicks(a.low, a.high, int(std::min(double(count), a.high - a.low)));
  const double apart = ticks.size() > 1 ? ticks[1] - ticks[0] : a.high;
  auto digits = [](double v) { return std::floor(std::log10(v) + 1e-9); };
  constexpr double written = 1e5;  // smaller ones are written out
  const bool isShort = a.high < written || digits(a.high) - digits(apart) <= 3;
  std::vector<std::pair<double, std::string>> marks;
  for (double t : ticks)
    marks.push_back({t, isShort ? shortNumber(t) : fmt::format("{:.0f}", t)});
  return marks;
}

void drawGrid(SvgDrawing &d, const Axis &x, const Axis &y) {
  for (const auto &[v, text] : marksOf(y, 5)) {
    d.line(left, y.at(v), right, y.at(v), grid);
    d.text(left - 6, y.at(v) + 4, text, "end");
  }
  for (const auto &[v, text] : marksOfSteps(x, 4)) {
    d.line(x.at(v), bottom, x.at(v), bottom + 4, grid);
    d.text(std::min(x.at(v), right - 8), bottom + 18, text, "middle");
  }
  d.line(left, bottom, right, bottom, grid);
}

void drawCurve(SvgDrawing &d, const ChartCurve &c, const Axis &x, const Axis &y) {
  const ThinCurve thin = thinned(c.points, x.low, x.high, columns);
  const char *colour = c.colour.c_str();
  const bool dots = c.dots && c.points.size() <= mostDots;
  for (const std::vector<ChartPoint> &piece : thin.pieces) {
    SvgDrawing::Points places;
    for (const ChartPoint &p : piece)
      places.push_back({x.at(p.x), y.at(p.y)});
    if (places.size() > 1)
      d.path(places, colour, 1.5);
    if (dots || places.size() == 1)
      for (const auto &[px, py] : places)
        d.dot(px, py, colour, true, 1.5);
  }
  for (double at : thin.notFinite)
    d.cross(x.at(at), top, colour);
}

}  // namespace

bool canBeDrawn(double y) { return std::abs(y) <= largest; }

ThinCurve thinned(const std::vector<ChartPoint> &points, double low, double high, size_t columns) {
  ThinCurve thin;
  std::vector<ChartPoint> piece;
  auto columnOf = [&](double x) {
    return high > low ? std::min(columns - 1, size_t((x - low) / (high - low) * double(columns))) : 0;
  };
  auto endPiece = [&] {
    if (!piece.empty())
      thin.pieces.push_back(std::move(piece));
    piece.clear();
  };
  for (size_t begin = 0; begin < points.size();) {
    const size_t column = columnOf(points[begin].x), none = points.size();
    size_t end = begin, first = none, least = none, most = none, last = none, bad = none;
    for (; end < points.size() && columnOf(points[end].x) == column; ++end) {
      if (!canBeDrawn(points[end].y)) {
        bad = bad == none ? end : bad;
        continue;
      }
      first = first == none ? end : first;
      least = least == none || points[end].y < points[least].y ? end : least;
      most = most == none || points[end].y > points[most].y ? end : most;
      last = end;
    }
    if (bad != none && (first == none || bad < first))
      endPiece();
    if (first != none) {
      size_t kept[] = {first, std::min(least, most), std::max(least, most), last};
      for (size_t i = 0; i < 4; ++i)
        if (i == 0 || kept[i] != kept[i - 1])
          piece.push_back(points[kept[i]]);
    }
    if (bad != none) {
      thin.notFinite.push_back(points[bad].x);
      endPiece();
    }
    begin = end;
  }
  endPiece();
  return thin;
}

std::vector<double> evenTicks(double low, double high, int count) {
  std::vector<double> all;
  if (!(high > low))
    return {low};
  const double rough = (high - low) / count, ten = std::pow(10, std::floor(std::log10(rough)));
  if (!(ten > 0))
    return {low};
  const double share = rough / ten, step = (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10) * ten;
  const double from = std::ceil(low / step - 1e-9);
  for (int i = 0; i <= 2 * count; ++i) {
    const double t = (from + i) * step;
    if (t > high + 1e-9 * step)
      break;
    all.push_back(t == 0 ? 0 : t);  // no -0
  }
  return all;
}

std::string shortNumber(double v) {
  const double size = std::abs(v);
  auto scaled = [&](double unit, const char *name) { return fmt::format("{:.4g}{}", v / unit, name); };
  if (!std::isfinite(v))
    return "not finite";
  if (size >= 1e15 || (size > 0 && size < 1e-3))
    return fmt::format("{:.3g}", v);
  return size >= 999.95e9   ? scaled(1e12, "T")
         : size >= 999.95e6 ? scaled(1e9, "G")
         : size >= 999.95e3 ? scaled(1e6, "M")
         : size >= 99.995e3 ? scaled(1e3, "k")
         : size >= 1e4      ? fmt::format("{:.0f}", v)
                            : fmt::format("{:.4g}", v);
}

std::string chart(const std::string &title, const std::vector<ChartCurve> &curves, ChartScale scale) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double lowX = infinity, highX = -infinity, lowY = infinity, highY = -infinity;
  for (const ChartCurve &c : curves)
    for (const ChartPoint &p : c.points) {
      lowX = std::min(lowX, p.x), highX = std::max(highX, p.x);
      if (canBeDrawn(p.y))
        lowY = std::min(lowY, p.y), highY = std::max(highY, p.y);
    }
  const bool isEmpty = lowY > highY;
  const Axis y = isEmpty ? Axis{0, 1, bottom, top} : axisOfY(lowY, highY, scale);
  SvgDrawing d(width, height, title + (y.isLog ? ", logarithmic" : ""));
  if (lowX > highX)
    lowX = 0, highX = 1;
  const Axis x{lowX, highX > lowX ? highX : lowX + 1, left, right};
  if (isEmpty)
    d.text((left + right) / 2, (top + bottom) / 2, "no finite value", "middle");
  else
    drawGrid(d, x, y);
  for (const ChartCurve &c : curves)
    drawCurve(d, c, x, y);
  return d.done();
}

}  // namespace gptc
