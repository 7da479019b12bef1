// SVG pictures, written as text.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace gptc {

/// Text in which nothing is markup.
std::string svgEscaped(const std::string &text);

/// 1, 2 and 5 times powers of ten from `low` to `high`, both above 0: the marks of a logarithmic axis.
std::vector<double> svgTicks(double low, double high);

/// A picture under construction, on white, with its title in the upper left corner. Lengths are in units of the
/// picture, y points down.
class SvgDrawing {
public:
  using Points = std::vector<std::pair<double, double>>;

  SvgDrawing(double width, double height, const std::string &title);
  /// `dashes`: lengths of strokes and gaps, as "6 3"; "" for a solid line.
  void line(double x0, double y0, double x1, double y1, const char *colour, double width = 1, const char *dashes = "");
  void box(double x, double y, double w, double h, const char *colour);
  void area(const Points &points, const char *colour);
  /// Straight lines from point to point.
  void path(const Points &points, const char *colour, double width = 1);
  void dot(double x, double y, const char *colour, bool filled, double radius = 4.5);
  void cross(double x, double y, const char *colour);
  void text(double x, double y, const std::string &s, const char *anchor = "start", int size = 12);
  std::string done() { return svg + "</svg>\n"; }

private:
  std::string svg;
  template <typename... A> void put(fmt::format_string<A...> f, A &&...a) {
    fmt::format_to(std::back_inserter(svg), f, std::forward<A>(a)...);
  }
  void putPoints(const Points &points);
};

}  // namespace gptc
