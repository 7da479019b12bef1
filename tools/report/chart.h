// Curves over steps as a small SVG picture, whose size does not depend on the number of steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gptc {

struct ChartPoint {
  double x = 0, y = 0;  // y: infinite or NaN if the run's value was not finite
};

/// What is drawn of a curve.
struct ThinCurve {
  std::vector<std::vector<ChartPoint>> pieces;  // all finite; the curve breaks where a value is not finite
  std::vector<double> notFinite;                // places of values that are not finite
};

/// The range of x is divided into `columns`. Of each the first, the least, the greatest and the last value stay, in
/// their order, so that no spike is lost; and one place of values that are not finite. `points`: by rising x from `low`
/// to `high`.
ThinCurve thinned(const std::vector<ChartPoint> &points, double low, double high, size_t columns);

/// Whether a picture can show y: finite, and so small that a difference of two does not overflow.
bool canBeDrawn(double y);

struct ChartCurve {
  std::string colour;  // as CSS has it
  std::vector<ChartPoint> points;
  bool dots = false;  // a dot at each point, where there are few
};

enum class ChartScale {
  linear,    // from the least to the greatest value
  fromZero,  // includes 0
  byRatio,   // logarithmic if all values are above 0 and the greatest is 20 times the least or more
};

/// About `count` round values from `low` to `high`, evenly apart.
std::vector<double> evenTicks(double low, double high, int count);

/// "12000", "1.5M": for axes and tables.
std::string shortNumber(double value);

/// Values that are not finite are crosses at the upper edge. Colours of lines and texts come from CSS: var(--grid), and
/// the current colour.
std::string chart(const std::string &title, const std::vector<ChartCurve> &curves, ChartScale scale);

}  // namespace gptc
