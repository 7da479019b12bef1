#include "tools/study/tune_verdict.h"

#include "support/diagnostics.h"

#include <algorithm>
#include <cmath>

namespace gptc {

StepVerdict verdictOf(const std::vector<double> &baseMs, const std::vector<double> &ms) {
  GPTC_CHECK(!ms.empty() && baseMs.size() == ms.size(), "{} steps against {}", ms.size(), baseMs.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < ms.size(); ++i)
    ratios.push_back(ms[i] / baseMs[i]);
  StepVerdict v{true, spreadOf(baseMs), spreadOf(ms), spreadOf(ratios)};
  std::sort(ratios.begin(), ratios.end());
  const size_t n = ratios.size(), cut = n < 4 ? 0 : n / 4;
  v.noise = (ratios[n - 1 - cut] - ratios[cut]) / 2;
  v.better = v.ratio.median < 1;
  v.beyondNoise = std::abs(v.ratio.median - 1) > v.noise;
  return v;
}

std::string inWords(const StepVerdict &v) {
  const double by = 100 * std::abs(v.ratio.median - 1);
  const std::string times = fmt::format("{:.2f} ms a step by default, {:.2f} ms as tuned ({:.3f}x, {:.3f}..{:.3f})",
                                        v.baseMs.median, v.ms.median, v.ratio.median, v.ratio.least, v.ratio.most);
  const std::string noise = fmt::format("the noise of {:.1f}%", 100 * v.noise);
  return v.better && v.beyondNoise ? fmt::format("{}: faster by {:.1f}%", times, by)
         : v.better                ? fmt::format("{}: faster by {:.1f}%, which is within {}", times, by, noise)
         : v.beyondNoise           ? fmt::format("{}: slower by {:.1f}%, so the default schedules stay", times, by)
                         : fmt::format("{}: no faster within {}, so the default schedules stay", times, noise);
}

}  // namespace gptc
