// 1. Each group of 32 values gets the scale and the minimum, real numbers, of the least squared error. The best numbers
//    depend on them, and they on the numbers; so some ways to spread the numbers over the range of the values are
//    tried, each with the scale and minimum that are best for its numbers, and the best way is repeated from its own
//    result.
// 2. The largest scale and the largest minimum of the eight groups become 63 times an f16.
// 3. Each group takes, of the scales and minimums of 6 bits around its own, the pair of the least error, with the
//    numbers that are nearest for that pair.
//
// Sums and quotients are f64 in a fixed order, without fused multiply-adds; errors are of the very f32 that
// dequantize() gives.
#include "support/gguf/q4_k.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace gptc {
namespace {

constexpr int kGroup = 32, kGroups = 8, kMostNumber = 15, kMostScale = 63;
constexpr int kTrials = 9, kFullRange = 3;  // spreadings of the numbers; this one is from 0 to 15 exactly
constexpr double kStep = 0.4;               // between the trials, in numbers at the upper end
constexpr int kRepeats = 3;

/// The nearest number.
int numberOf(double place) {
  return place <= 0 ? 0 : place >= kMostNumber ? kMostNumber : int(std::floor(place + 0.5));
}

/// A group is about scale * number - least; both are at least 0.
struct Fit {
  double scale = 0, least = 0, error = 0;
};

/// What the scale and the minimum of a group are found from.
class Group {
public:
  explicit Group(const float *x) : x(x), high(x[0]) {
    for (int i = 0; i < kGroup; ++i) {
      low = std::min(low, double(x[i]));
      high = std::max(high, double(x[i]));
      sum += double(x[i]);
      squares += double(x[i]) * double(x[i]);
    }
  }

  Fit best() const {
    if (high <= low)  // one value, which is not positive: a minimum without numbers
      return {0, -low, 0};
    Fit found{0, 0, squares};
    auto take = [&](const Fit &f) {
      const bool better = f.error < found.error;
      if (better)
        found = f;
      return better;
    };
    for (int trial = 0; trial < kTrials; ++trial)
      take(around((kMostNumber + kStep * (trial - kFullRange)) / (high - low), low));
    for (int i = 0; i < kRepeats && found.scale > 0; ++i)
      if (!take(around(1 / found.scale, -found.least)))
        break;
    return found;
  }

private:
  /// The best scale and minimum for the numbers nearest to (x - from) * steps.
  Fit around(double steps, double from) const {
    int numbers = 0, numberSquares = 0;
    double products = 0;
    for (int i = 0; i < kGroup; ++i) {
      const int q = numberOf((double(x[i]) - from) * steps);
      numbers += q;
      numberSquares += q * q;
      products += q * double(x[i]);
    }
    // Least squares of scale * q + offset; without the offset if it would be positive, which no minimum is.
    const int determinant = kGroup * numberSquares - numbers * numbers;
    double scale = 0, offset = 0;
    if (determinant > 0) {
      scale = (kGroup * products - numbers * sum) / determinant;
      offset = (numberSquares * sum - numbers * products) / determinant;
    }
    if (determinant == 0 || offset > 0) {
      offset = 0;
      scale = numberSquares ? std::max(0.0, products / numberSquares) : 0;
    }
    return {scale, -offset, squares - scale * products - offset * sum};
  }

  const float *x;
  double low = 0, high, sum = 0, squares = 0;
};

/// Squared error of a group with this scale and minimum and the nearest numbers, which `to` gets if it is not null.
double errorOf(const float *x, float scale, float least, uint8_t *to = nullptr) {
  const double inverse = scale > 0 ? 1 / double(scale) : 0;
  double error = 0;
  for (int i = 0; i < kGroup; ++i) {
    const int q = numberOf((double(x[i]) + double(least)) * inverse);
    const float value = scale * float(q) - least;
    const double off = double(value) - double(x[i]);
    error += off * off;
    if (to)
      to[i] = uint8_t(q);
  }
  return error;
}

/// The f16 of which `largest` is about 63 times. Among the smallest f16 the nearest may be too small for that.
_Float16 unitOf(double largest) {
  const auto unit = _Float16(float(largest / kMostScale));
  if (std::isfinite(float(unit)) && float(unit) * (kMostScale + 0.5) < largest)
    return std::bit_cast<_Float16>(uint16_t(std::bit_cast<uint16_t>(unit) + 1));
  return unit;
}

/// A scale and a minimum of 6 bits.
struct Pair {
  int scale = 0, least = 0;
};

/// The pair of the least error around those of `fit`.
Pair pairOf(const float *x, const Fit &fit, float d, float dLeast) {
  auto around = [](double value, float unit) {
    const int nearest = unit > 0 ? int(std::min<double>(kMostScale, value / double(unit) + 0.5)) : 0;
    return std::pair(std::max(0, nearest - 1), std::min(kMostScale, nearest + 1));
  };
  const auto scales = around(fit.scale, d), leasts = around(fit.least, dLeast);
  Pair best;
  double error = INFINITY;
  for (int s = scales.first; s <= scales.second; ++s)
    for (int l = leasts.first; l <= leasts.second; ++l)
      if (const double e = errorOf(x, d * float(s), dLeast * float(l)); e < error) {
        best = {s, l};
        error = e;
      }
  return best;
}

/// Puts the pair of group `g` into the 12 bytes of all (SixBits reads them).
void store(const Pair &pair, int g, uint8_t *six) {
  const int i = g % 4;
  if (g < 4) {
    six[i] |= uint8_t(pair.scale);
    six[4 + i] |= uint8_t(pair.least);
    return;
  }
  six[8 + i] = uint8_t((pair.scale & 15) | (pair.least & 15) << 4);
  six[i] |= uint8_t(pair.scale >> 4 << 6);
  six[4 + i] |= uint8_t(pair.least >> 4 << 6);
}

}  // namespace

bool writeQ4_K(const float *values, uint8_t *block) {
  std::memset(block, 0, 144);
  if (!std::all_of(values, values + kGroup * kGroups, [](float x) { return std::isfinite(x); }))
    return false;
  Fit fits[kGroups];
  double scale = 0, least = 0;
  for (int g = 0; g < kGroups; ++g) {
    fits[g] = Group(values + kGroup * g).best();
    scale = std::max(scale, fits[g].scale);
    least = std::max(least, fits[g].least);
  }
  const _Float16 d = unitOf(scale), dLeast = unitOf(least);
  if (!std::isfinite(float(d)) || !std::isfinite(float(dLeast)))
    return false;
  std::memcpy(block, &d, 2);
  std::memcpy(block + 2, &dLeast, 2);
  for (int g = 0; g < kGroups; ++g) {
    const float *x = values + kGroup * g;
    const Pair pair = pairOf(x, fits[g], float(d), float(dLeast));
    store(pair, g, block + 4);
    uint8_t numbers[kGroup];
    errorOf(x, float(d) * float(pair.scale), float(dLeast) * float(pair.least), numbers);
    // Two groups share 32 bytes, the even one in their lower halves.
    for (int i = 0; i < kGroup; ++i)
      block[16 + g / 2 * kGroup + i] |= uint8_t(numbers[i] << (g % 2 ? 4 : 0));
  }
  return true;
}

}  // namespace gptc
