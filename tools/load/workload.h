// What is asked of a server, and when: a pure function of the options and the number of the request, whatever the
// server does.
#pragma once

#include "support/json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc::load {

/// From `least` to `most`, each as likely.
struct Range {
  int64_t least = 0, most = 0;
  /// "64", or "32..128".
  std::string str() const;
};
/// Reads "N" or "A..B" with 1 <= A <= B <= 2^30, each as parseWholeTokens does. Throws UserError(Usage), which names
/// `option`.
Range parseRange(const std::string &text, const char *option);

/// Requests in a second, for arrivals that do not wait for answers. Infinite: all at once.
/// Reads a number above 0, or "inf". Throws UserError(Usage).
double parseRate(const std::string &text);

struct WorkloadOptions {
  Range promptTokens{128, 128}, maxTokens{64, 64};
  int64_t vocabulary = 1000;  // token ids of random prompts are below it
  uint64_t seed = 0;
  double temperature = 0;
  bool ignoreEos = true;       // answers do not end before max_tokens
  std::optional<double> rate;  // none: as soon as a client is free
};

class Workload {
public:
  struct Request {
    std::string body;           // JSON
    int64_t promptTokens = -1;  // -1: a text, of which only the server knows
    int64_t maxTokens = 0;
  };

  /// Prompts are arrays of random token ids.
  explicit Workload(WorkloadOptions options) : options(options) {}
  /// Prompts are the lines of `text`, in turn. If `isJson`, a line is a JSON object with "prompt", a text or an array
  /// of token ids, perhaps "max_tokens", and other members that are sent as they are, but for "id" and what says how to
  /// answer. `name` is for errors. Throws UserError(DataInvalid).
  Workload(WorkloadOptions options, const std::string &text, bool isJson, const std::string &name);

  /// The name of the model, which requests name.
  void setModel(std::string name) { model = std::move(name); }
  /// A different one for each `index` >= 0. Warm-up has numbers of its own.
  Request request(int64_t index, bool isWarmup = false) const;
  /// When each of `count` requests is to begin, in seconds from the first; none without a rate. A Poisson process,
  /// given that so many arrive at just the rate: exponentially distributed gaps, scaled to a mean of 1 / rate.
  std::vector<double> arrivals(int64_t count) const;
  bool hasRandomPrompts() const { return prompts.empty(); }

private:
  const WorkloadOptions options;
  std::string model;
  std::vector<nlohmann::json> prompts;  // objects with "prompt"; none: random ones
};

}  // namespace gptc::load
