// Sends requests to a server, many at once, and notes when what came.
#pragma once

#include "tools/load/server.h"
#include "tools/load/workload.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gptc::load {

/// One request. Times are in seconds since the first was due.
struct Outcome {
  double start = 0;                                            // begins to connect
  double end = 0;                                              // of the whole answer, or of the attempt
  std::vector<double> chunks;                                  // as in CompletionStream
  int64_t promptTokens = -1, outputTokens = 0, maxTokens = 0;  // promptTokens: -1 if nobody knows
  bool byUsage = false;                                        // the server counted the tokens; else chunks are counted
  bool failed = false;
  std::string failure, detail;  // as in Failure
};

struct LoadOptions {
  int64_t requests = 100;
  int64_t clients = 8;   // requests in flight at once; no limit for a workload with a rate, but in its warm-up
  double timeout = 600;  // seconds from the start of a request to the end of its answer
  bool isWarmup = false;
};

struct LoadResult {
  std::vector<Outcome> outcomes;  // in the order of their starts
  double seconds = 0;             // from the first start to the last end
  int64_t peakInFlight = 0;
  double mostLate = 0;  // seconds of a start behind the time at which it was due; 0 without a rate
};

/// Sends the requests by one thread: a connection for each, in which it alone goes. With clients, the next begins as
/// soon as one ends; with a rate, at its time, whatever is in flight. `progress`: called with how many have ended.
LoadResult runLoad(const Server &server, const Workload &workload, const LoadOptions &options,
                   const std::function<void(int64_t)> &progress);

}  // namespace gptc::load
