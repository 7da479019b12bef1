// What a server has done, for Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace gptc {

/// Counts of durations.
struct Histogram {
  static constexpr std::array<double, 14> bounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                    1,     2.5,  5,     10,   25,  50,   100};  // seconds
  std::array<int64_t, bounds.size()> upTo{};
  int64_t count = 0;
  double sum = 0;
  void add(double seconds);
};

class Metrics {
public:
  struct Gauges {
    int64_t slots = 0, running = 0, waiting = 0, generatedTokens = 0;
  };
  /// `path`: one that there is, or "" for all others, as clients choose these.
  void countRequest(const std::string &path, int status);
  void countPrompt(int64_t tokens);
  void addTimes(double toFirstToken, double whole);
  /// Prometheus's text format, version 0.0.4. `bytesHeld`: of a ByteBudget. `gauges`: of a server that continues texts;
  /// none: of vectors.
  std::string text(int64_t bytesHeld, const std::optional<Gauges> &gauges) const;

private:
  mutable std::mutex mutex;
  std::map<std::pair<std::string, int>, int64_t> requests;  // by path and status
  int64_t promptTokens = 0;
  Histogram toFirst, whole;
};

}  // namespace gptc
