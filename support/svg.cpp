#include "support/svg.h"

#include <cmath>

namespace gptc {

std::string svgEscaped(const std::string &text) {
  std::string out;
  for (char c : text)
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::vector<double> svgTicks(double low, double high) {
  std::vector<double> all;
  for (double d = std::pow(10, std::floor(std::log10(low))); d <= high; d *= 10)
    for (double k : {1.0, 2.0, 5.0})
      if (d * k >= low * 0.999 && d * k <= high * 1.001)
        all.push_back(d * k);
  return all;
}

SvgDrawing::SvgDrawing(double width, double height, const std::string &title) {
  put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n",
      width, height);
  put("<rect width=\"{}\" height=\"{}\" fill=\"white\"/>\n", width, height);
  text(16, 24, title, "start", 15);
}

void SvgDrawing::line(double x0, double y0, double x1, double y1, const char *colour, double width,
                      const char *dashes) {
  put("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{}\"{}/>\n", x0, y0,
      x1, y1, colour, width, *dashes ? fmt::format(" stroke-dasharray=\"{}\"", dashes) : "");
}

void SvgDrawing::box(double x, double y, double w, double h, const char *colour) {
  put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y, w, h, colour);
}

void SvgDrawing::putPoints(const Points &points) {
  for (auto [x, y] : points)
    put("{:.1f},{:.1f} ", x, y);
}

void SvgDrawing::area(const Points &points, const char *colour) {
  put("<polygon points=\"");
  putPoints(points);
  put("\" fill=\"{}\"/>\n", colour);
}

void SvgDrawing::path(const Points &points, const char *colour, double width) {
  put("<polyline points=\"");
  putPoints(points);
  put("\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"/>\n", colour, width);
}

void SvgDrawing::dot(double x, double y, const char *colour, bool filled, double radius) {
  put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\" stroke=\"{}\" stroke-width=\"2\"/>\n", x, y, radius,
      filled ? colour : "white", colour);
}

void SvgDrawing::cross(double x, double y, const char *colour) {
  line(x - 4, y - 4, x + 4, y + 4, colour, 2);
  line(x - 4, y + 4, x + 4, y - 4, colour, 2);
}

void SvgDrawing::text(double x, double y, const std::string &s, const char *anchor, int size) {
  put("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y, anchor, size,
      svgEscaped(s));
}

}  // namespace gptc
