#include "tools/estimate/loss_curve.h"

#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"
#include "support/median.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>

namespace gptc {

namespace {

constexpr int binCount = 32, leastBins = 8, gridCount = 48, drawCount = 200;
constexpr double firstExponent = 0.03, lastExponent = 2;
constexpr double tenth = 0.1;    // of the tokens: where the fit begins
constexpr double huber = 1.345;  // 95% as efficient as squares where errors are normal
constexpr double mostTokens = 1e18;
// In simulated runs with noise and spikes the middle 90% of the draws held the truth in 82 to 90%; so widened, in 88 to
// 95%.
constexpr double widening = 1.3;
constexpr size_t logLimit = size_t(1) << 30;

double exponentOf(int k) { return firstExponent * std::pow(lastExponent / firstExponent, double(k) / (gridCount - 1)); }

/// Linear between ranks; `sorted` is not empty.
double quantile(const std::vector<double> &sorted, double share) {
  const double at = share * double(sorted.size() - 1);
  const size_t below = size_t(at), above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - double(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

std::vector<CurvePoint> readCurve(const std::string &file) {
  const std::string text = readInput(file, "log of a run", logLimit);
  std::map<int64_t, double> losses;  // by step: a log may have steps twice
  std::vector<double> ofSteps;       // tokens
  llvm::StringRef rest = text;
  while (!rest.empty()) {
    const auto [line, behind] = rest.split('\n');
    rest = behind;
    const nlohmann::json j = parseJsonOrDiscard(line);
    const auto &step = part(j, "step"), &loss = part(j, "loss"), &ms = part(j, "ms"), &speed = part(j, "tokens_per_s");
    if (!step.is_number_integer() || !loss.is_number() || !(double(step) > 0) || !std::isfinite(double(loss)))
      continue;
    losses[step.get<int64_t>()] = loss.get<double>();
    if (ms.is_number() && speed.is_number())
      ofSteps.push_back(std::round(1e-3 * double(ms) * double(speed)));
  }
  const double tokens = ofSteps.empty() ? 0 : medianOf(ofSteps);
  if (losses.empty() || !(tokens >= 1))
    throw UserError(ErrorCode::DataInvalid,
                    fmt::format("{} has no training steps with step, loss, ms and tokens_per_s", file),
                    "give the log.jsonl that gptrun writes into a run's out_dir");
  std::vector<CurvePoint> points;
  for (const auto &[step, loss] : losses)
    points.push_back({double(step) * tokens, loss});
  return points;
}

double LossCurve::Law::at(double x) const { return offset + scale * std::pow(x, -exponent); }

LossCurve::LossCurve(std::string file, const std::vector<CurvePoint> &points) : name(std::move(file)) {
  // Step 1.
  end = points.empty() ? 0 : points.back().tokens;
  std::map<int, std::vector<CurvePoint>> inBins;
  int count = 0;
  for (const CurvePoint &p : points)
    if (p.tokens >= tenth * end) {
      const int bin = int(binCount * std::log10(p.tokens / (tenth * end)));
      inBins[std::clamp(bin, 0, binCount - 1)].push_back(p);
      ++count;
    }
  if (count < leastPoints || inBins.size() < leastBins)
    throw UserError(
        ErrorCode::DataInvalid,
        fmt::format("{} has {} losses in the last tenfold of its tokens, too few for a curve", name, count),
        fmt::format("{} in {} places or more: log more often, or let the run go on", leastPoints, leastBins));
  for (const auto &[bin, some] : inBins) {
    std::vector<double> losses;
    double logs = 0;
    for (const CurvePoint &p : some) {
      losses.push_back(p.loss);
      logs += std::log(p.tokens / end);
    }
    bins.push_back({std::exp(logs / double(some.size())), medianOf(losses),
                    double(some.size()) * double(inBins.size()) / double(count)});
  }
  // Of normal errors of variance s^2 the second difference has 6 s^2; the median of magnitudes is 0.6745 of a
  // deviation.
  std::vector<double> second;
  for (size_t i = 1; i + 1 < bins.size(); ++i)
    second.push_back(std::abs(bins[i - 1].loss - 2 * bins[i].loss + bins[i + 1].loss));
  noise = std::max(medianOf(second) / 0.6745 / std::sqrt(6), 1e-6 * bins.back().loss);
  std::vector<std::vector<double>> powers(gridCount);
  std::vector<double> losses;
  for (const Bin &b : bins) {
    losses.push_back(b.loss);
    for (int k = 0; k < gridCount; ++k)
      powers[size_t(k)].push_back(std::pow(b.x, -exponentOf(k)));
  }
  fitted = fit(powers, losses);
  if (const double fall = fitted.at(tenth) - fitted.at(1); !(fall > 5 * noise))
    throw UserError(
        ErrorCode::DataInvalid,
        fmt::format("the loss in {} falls by {:.2g} in the last tenfold of its tokens, and scatters by {:.2g}", name,
                    fall, noise),
        "only a run that learns has a curve to continue; log more often, or let it go on");
  draw(powers);
}

// Step 2. `powers`: of the bins, x^-exponent.
LossCurve::Law LossCurve::fitFor(double exponent, const std::vector<double> &powers,
                                 const std::vector<double> &losses) const {
  const size_t n = bins.size();
  Law law;
  law.exponent = exponent;
  std::vector<double> weights;
  for (const Bin &b : bins)
    weights.push_back(b.weight);
  for (int round = 0; round < 8; ++round) {
    double w = 0, wu = 0, wy = 0, wuu = 0, wuy = 0;
    for (size_t i = 0; i < n; ++i) {
      w += weights[i];
      wu += weights[i] * powers[i];
      wy += weights[i] * losses[i];
    }
    const double u = wu / w, y = wy / w;
    for (size_t i = 0; i < n; ++i) {
      wuu += weights[i] * (powers[i] - u) * (powers[i] - u);
      wuy += weights[i] * (powers[i] - u) * (losses[i] - y);
    }
    law.scale = std::max(0.0, wuy / wuu);
    law.offset = y - law.scale * u;
    if (law.offset < 0) {  // no loss is below 0, however long the run
      law.offset = 0;
      law.scale = (wuy + w * u * y) / (wuu + w * u * u);
    }
    law.cost = 0;
    for (size_t i = 0; i < n; ++i) {
      const double e = std::abs(losses[i] - law.offset - law.scale * powers[i]) * std::sqrt(bins[i].weight) / noise;
      weights[i] = bins[i].weight * (e > huber ? huber / e : 1);
      law.cost += e > huber ? huber * (2 * e - huber) : e * e;
    }
  }
  return law;
}

// Step 3. `powers`: for each exponent of the grid.
LossCurve::Law LossCurve::fit(const std::vector<std::vector<double>> &powers, const std::vector<double> &losses) const {
  int best = 0;
  Law law;
  for (int k = 0; k < gridCount; ++k)
    if (const Law one = fitFor(exponentOf(k), powers[size_t(k)], losses); k == 0 || one.cost < law.cost) {
      law = one;
      best = k;
    }
  auto at = [&](double exponent) {
    std::vector<double> own;
    for (const Bin &b : bins)
      own.push_back(std::pow(b.x, -exponent));
    return fitFor(exponent, own, losses);
  };
  const double golden = (std::sqrt(5) - 1) / 2;
  double low = exponentOf(std::max(best - 1, 0)), high = exponentOf(std::min(best + 1, gridCount - 1));
  Law left = at(high - golden * (high - low)), right = at(low + golden * (high - low));
  for (int round = 0; round < 16; ++round) {
    const bool goLeft = left.cost < right.cost;
    (goLeft ? high : low) = (goLeft ? right : left).exponent;
    (goLeft ? right : left) = goLeft ? left : right;
    (goLeft ? left : right) = at(goLeft ? high - golden * (high - low) : low + golden * (high - low));
  }
  for (const Law &one : {left, right})
    if (one.cost < law.cost)
      law = one;
  return law;
}

// Step 4.
void LossCurve::draw(const std::vector<std::vector<double>> &powers) {
  const double n = double(bins.size()), fewer = std::sqrt(n / (n - 3));  // three were fitted
  std::vector<double> residuals;                                         // of a bin of weight 1
  for (const Bin &b : bins)
    residuals.push_back((b.loss - fitted.at(b.x)) * std::sqrt(b.weight) * fewer);
  std::mt19937_64 random(1);
  for (int i = 0; i < drawCount; ++i) {
    std::vector<double> losses;
    for (const Bin &b : bins)
      losses.push_back(fitted.at(b.x) + residuals[random() % residuals.size()] / std::sqrt(b.weight));
    others.push_back(fit(powers, losses));
  }
}

LossCurve::Span LossCurve::lossAt(double tokens) const {
  std::vector<double> all;
  for (const Law &l : others)
    all.push_back(l.at(tokens / end));
  std::sort(all.begin(), all.end());
  Span s;
  s.value = fitted.at(tokens / end);
  s.low = std::max(0.0, s.value - widening * std::max(0.0, s.value - quantile(all, 0.05)));
  s.high = s.value + widening * std::max(0.0, quantile(all, 0.95) - s.value);
  return s;
}

LossCurve::Span LossCurve::tokensTo(double loss) const {
  const double first = tenth * end, begins = fitted.at(tenth), ends = fitted.at(mostTokens / end);
  if (loss > begins)
    throw UserError(ErrorCode::OutOfRange,
                    fmt::format("loss {:.4g} is above the curve of {}, which has {:.4g} after {:.3g} tokens", loss,
                                name, begins, first),
                    "ask for a lower one");
  if (loss <= ends)
    throw UserError(ErrorCode::OutOfRange,
                    fmt::format("loss {:.4g} is below the curve of {}, which flattens at {:.4g}: {}", loss, name,
                                fitted.offset, formula()),
                    fmt::format("ask for one above {:.4g}, or train a larger model", ends));
  /// The tokens at which a falling curve has the loss.
  auto reach = [&](auto &&curve) {
    double low = std::log(first), high = std::log(mostTokens);
    if (curve(mostTokens) > loss)
      return std::numeric_limits<double>::infinity();
    for (int round = 0; round < 60; ++round) {
      const double middle = (low + high) / 2;
      (curve(std::exp(middle)) > loss ? low : high) = middle;
    }
    return std::exp(high);
  };
  return {reach([&](double t) { return fitted.at(t / end); }), reach([&](double t) { return lossAt(t).low; }),
          reach([&](double t) { return lossAt(t).high; })};
}

std::string LossCurve::formula() const {
  return fmt::format("{:.4g} + {:.3g} (tokens / {:.3g})^-{:.3g}", fitted.offset, fitted.scale, end, fitted.exponent);
}

}  // namespace gptc
