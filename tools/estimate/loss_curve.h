// Continues the loss of a run by its own log.
//
//   loss = offset + scale (tokens / last)^-exponent
//
//   1. Take the last tenfold of tokens: warm-up and the first steps follow no such law. Divide it into bins of equal
//      ratio; each has the median loss of its points, so that spikes do not count.
//   2. For an exponent, offset and scale are linear: fit them by Huber's loss (1964), with bins weighted by their
//   points
//      and residuals in units of the noise, which second differences of the bins tell.
//   3. Search the exponent: a grid, then a golden section beside the best.
//   4. Interval: fit curves whose residuals are drawn anew from those of the fit (a bootstrap, Efron 1979; always the
//   same
//      draws), and take the middle 90% of what they say, widened by what simulated runs showed to be missing.
#pragma once

#include <string>
#include <vector>

namespace gptc {

struct CurvePoint {
  double tokens = 0, loss = 0;
};

/// The training steps in a run's log.jsonl (runtime/train/metrics.h), in order. Tokens of a step: the median of ms x
/// tokens_per_s. Throws UserErrors FileMissing, TooLarge, and DataInvalid for a file without such lines.
std::vector<CurvePoint> readCurve(const std::string &file);

class LossCurve {
public:
  static constexpr int leastPoints = 20;  // in the last tenfold of tokens

  /// `file`: for messages. `points`: by rising tokens. Throws UserError(DataInvalid) for too few points, and for a loss
  /// that does not fall.
  LossCurve(std::string file, const std::vector<CurvePoint> &points);

  struct Span {
    double value = 0, low = 0, high = 0;  // 90% between low and high
  };
  /// In nats per token; `tokens` from a tenth of the log's on.
  Span lossAt(double tokens) const;
  /// Tokens after which the curve has this loss. `high` is infinite if 1e18 tokens may not suffice. Throws
  /// UserError(OutOfRange) if the curve itself does not reach the loss within as many, or began below it.
  Span tokensTo(double loss) const;

  const std::string &file() const { return name; }
  /// Tokens of the last point.
  double last() const { return end; }
  /// "2.91 + 0.402 (tokens / 1.2e+09)^-0.31".
  std::string formula() const;

private:
  struct Law {
    double exponent = 0, offset = 0, scale = 0, cost = 0;
    double at(double x) const;  // x: tokens over the last
  };
  struct Bin {
    double x = 0, loss = 0, weight = 0;  // weight: points over the mean number of a bin
  };
  std::string name;
  double end = 0;
  std::vector<Bin> bins;
  double noise = 0;  // standard deviation of a bin of weight 1
  Law fitted;
  std::vector<Law> others;  // of the bootstrap

  Law fitFor(double exponent, const std::vector<double> &powers, const std::vector<double> &losses) const;
  Law fit(const std::vector<std::vector<double>> &powers, const std::vector<double> &losses) const;
  void draw(const std::vector<std::vector<double>> &powers);
};

}  // namespace gptc
