#include "tools/estimate/loss.h"

#include <cmath>

namespace gptc {

namespace {

constexpr double E = 1.8172, A = 482.01, alpha = 0.3478, B = 2085.43, beta = 0.3658;
constexpr double mostTokens = 1e18;

}  // namespace

double leastLossByLaw(double parameters) { return E + A * std::pow(parameters, -alpha); }

double lossByLaw(double parameters, double tokens) { return leastLossByLaw(parameters) + B * std::pow(tokens, -beta); }

std::optional<double> tokensByLaw(double parameters, double loss) {
  const double excess = loss - leastLossByLaw(parameters);
  if (!(excess > 0))
    return std::nullopt;
  const double tokens = std::pow(B / excess, 1 / beta);
  return tokens <= mostTokens ? std::optional<double>(tokens) : std::nullopt;
}

double criticalBatch(double loss) { return 2e8 * std::pow(loss, -1 / 0.21); }

}  // namespace gptc
