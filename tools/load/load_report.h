// What a load test found: as a table, as JSON, as a picture.
#pragma once

#include "support/json.h"
#include "tools/load/load_run.h"
#include "tools/load/statistics.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gptc::load {

/// What was asked for, as a report repeats it.
struct LoadQuestion {
  std::string url, model, prompts;  // `prompts`: a file, or ""
  Range promptTokens, maxTokens;
  int64_t requests = 0, clients = 0;  // clients: 0 with a rate
  std::optional<double> rate;         // requests/s
  uint64_t seed = 0;
  double temperature = 0;
  bool ignoreEos = true;
};

/// Latencies are in milliseconds, of requests that did not fail.
struct LoadReport {
  LoadReport(LoadQuestion asked, const LoadResult &result);

  const LoadQuestion asked;
  /// From the start of a request, connection included, to its first token.
  Distribution ttft;
  /// From a request's first token to its last, by token behind the first.
  Distribution tpot;
  /// Between two chunks of tokens of a request.
  Distribution itl;
  /// From the start of a request to the end of its answer.
  Distribution e2el;
  double seconds = 0, mostLate = 0;
  double sentRate = 0;  // requests/s that began; 0 if one alone did
  int64_t peakInFlight = 0, completed = 0;
  int64_t outputTokens = 0;
  std::optional<int64_t> promptTokens;  // none: of some request nobody knows
  int64_t byUsage = 0;                  // completed requests whose tokens the server counted
  int64_t shortAnswers = 0;             // completed with fewer tokens than max_tokens
  struct Failures {
    std::string kind, example;
    int64_t count = 0;
  };
  std::vector<Failures> failures;  // most first

  int64_t failed() const { return asked.requests - completed; }
  double perSecond(int64_t count) const { return seconds > 0 ? double(count) / seconds : 0; }
  /// "usage", "chunks" or "mixed".
  const char *countedBy() const;

  std::string table() const;
  /// The members that `gptc bench serve --help` lists.
  nlohmann::ordered_json json() const;
  /// An SVG: the cumulative distributions of time to first token and inter-token latency.
  std::string picture() const;
};

}  // namespace gptc::load
