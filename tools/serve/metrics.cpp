#include "tools/serve/metrics.h"

#include <fmt/format.h>

namespace gptc {
namespace {

std::string head(const char *name, const char *kind, const char *help) {
  return fmt::format("# HELP gptc_{0} {2}\n# TYPE gptc_{0} {1}\n", name, kind, help);
}

std::string number(const char *name, const char *kind, const char *help, int64_t value) {
  return head(name, kind, help) + fmt::format("gptc_{} {}\n", name, value);
}

std::string histogram(const char *name, const char *help, const Histogram &h) {
  std::string out = head(name, "histogram", help);
  for (size_t i = 0; i < h.bounds.size(); ++i)
    out += fmt::format("gptc_{}_bucket{{le=\"{}\"}} {}\n", name, h.bounds[i], h.upTo[i]);
  return out + fmt::format("gptc_{0}_bucket{{le=\"+Inf\"}} {1}\ngptc_{0}_sum {2}\ngptc_{0}_count {1}\n", name, h.count,
                           h.sum);
}

}  // namespace

void Histogram::add(double seconds) {
  for (size_t i = 0; i < bounds.size(); ++i)
    upTo[i] += seconds <= bounds[i] ? 1 : 0;
  ++count;
  sum += seconds;
}

void Metrics::countRequest(const std::string &path, int status) {
  const std::lock_guard lock(mutex);
  ++requests[{path, status}];
}

void Metrics::countPrompt(int64_t tokens) {
  const std::lock_guard lock(mutex);
  promptTokens += tokens;
}

void Metrics::addTimes(double toFirstToken, double time) {
  const std::lock_guard lock(mutex);
  if (toFirstToken >= 0)
    toFirst.add(toFirstToken);
  whole.add(time);
}

std::string Metrics::text(int64_t bytesHeld, const std::optional<Gauges> &g) const {
  const std::lock_guard lock(mutex);
  std::string out;
  if (g)
    out = number("slots", "gauge", "Sequences that can be continued at once.", g->slots) +
          number("sequences_running", "gauge", "Sequences that are being continued.", g->running) +
          number("sequences_waiting", "gauge", "Sequences that wait for a slot.", g->waiting) +
          number("generated_tokens_total", "counter", "Tokens that were generated.", g->generatedTokens);
  out += number("bytes_held", "gauge", "Bytes of requests, and of answers that clients have not taken.", bytesHeld) +
         number("prompt_tokens_total", "counter", "Tokens of prompts.", promptTokens) +
         head("requests_total", "counter", "Answered requests, by path and status.");
  for (const auto &[key, count] : requests)
    out += fmt::format("gptc_requests_total{{path=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, count);
  if (!g)
    return out +
           histogram("embedding_seconds", "From the arrival of a request for vectors to the last of them.", whole);
  return out +
         histogram("time_to_first_token_seconds", "From the arrival of a completion's request to its first token.",
                   toFirst) +
         histogram("completion_seconds", "From the arrival of a completion's request to its last token.", whole);
}

}  // namespace gptc
