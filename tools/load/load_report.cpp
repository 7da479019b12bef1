#include "tools/load/load_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

namespace gptc::load {

using nlohmann::ordered_json;

namespace {

/// Of all requests that did not fail, what `add` appends, in milliseconds.
template <class Add> Distribution latencies(const LoadResult &result, Add add) {
  std::vector<double> all;
  for (const Outcome &o : result.outcomes)
    if (!o.failed)
      add(o, all);
  for (double &v : all)
    v *= 1e3;
  return Distribution(std::move(all));
}

std::string rateOf(double rate) { return std::isinf(rate) ? "inf" : fmt::format("{:.4g}", rate); }

}  // namespace

LoadReport::LoadReport(LoadQuestion question, const LoadResult &result)
    : asked(std::move(question)), ttft(latencies(result,
                                                 [](const Outcome &o, std::vector<double> &to) {
                                                   if (!o.chunks.empty())
                                                     to.push_back(o.chunks.front() - o.start);
                                                 })),
      tpot(latencies(result,
                     [](const Outcome &o, std::vector<double> &to) {
                       if (o.outputTokens > 1 && !o.chunks.empty())
                         to.push_back((o.chunks.back() - o.chunks.front()) / double(o.outputTokens - 1));
                     })),
      itl(latencies(result,
                    [](const Outcome &o, std::vector<double> &to) {
                      for (size_t i = 1; i < o.chunks.size(); ++i)
                        to.push_back(o.chunks[i] - o.chunks[i - 1]);
                    })),
      e2el(latencies(result, [](const Outcome &o, std::vector<double> &to) { to.push_back(o.end - o.start); })),
      seconds(result.seconds), mostLate(result.mostLate), peakInFlight(result.peakInFlight), promptTokens(0) {
  std::map<std::string, Failures> kinds;
  for (const Outcome &o : result.outcomes) {
    if (o.failed) {
      Failures &f = kinds.try_emplace(o.failure, Failures{o.failure, o.detail, 0}).first->second;
      ++f.count;
      continue;
    }
    ++completed;
    outputTokens += o.outputTokens;
    promptTokens = promptTokens && o.promptTokens >= 0 ? std::optional(*promptTokens + o.promptTokens) : std::nullopt;
    byUsage += o.byUsage;
    shortAnswers += o.outputTokens < o.maxTokens;
  }
  for (auto &[kind, f] : kinds)
    failures.push_back(std::move(f));
  std::stable_sort(failures.begin(), failures.end(), [](const auto &a, const auto &b) { return a.count > b.count; });
  if (const auto &all = result.outcomes; all.size() > 1)
    sentRate = double(all.size() - 1) / std::max(1e-9, all.back().start - all.front().start);
}

const char *LoadReport::countedBy() const { return byUsage == completed ? "usage" : byUsage == 0 ? "chunks" : "mixed"; }

std::string LoadReport::table() const {
  std::string out =
      fmt::format("{} at {}: {}, {}, up to {} output tokens{}\n\n", asked.model, asked.url,
                  asked.rate ? fmt::format("{} requests/s", rateOf(*asked.rate))
                             : fmt::format("{} client{}", asked.clients, asked.clients == 1 ? "" : "s"),
                  asked.prompts.empty() ? fmt::format("prompts of {} random tokens", asked.promptTokens.str())
                                        : "prompts of " + asked.prompts,
                  asked.maxTokens.str(), asked.ignoreEos ? ", end tokens ignored" : "");
  auto row = [&](const char *name, const std::string &value) { out += fmt::format("{:<24}{}\n", name, value); };
  row("requests", fmt::format("{} completed, {} failed", completed, failed()));
  for (const Failures &f : failures)
    out += fmt::format("{:>12}x {}{}{}\n", f.count, f.kind, f.example.empty() ? "" : ": ", f.example);
  row("duration", fmt::format("{:.3f} s", seconds));
  row("peak concurrency", fmt::format("{}", peakInFlight));
  if (asked.rate)
    row("request rate", fmt::format("{} asked, {} sent; {:.1f} ms late at most", rateOf(*asked.rate),
                                    asked.requests > 1 ? fmt::format("{:.4g}", sentRate) : "one", 1e3 * mostLate));
  row("request throughput", fmt::format("{:.4g} requests/s", perSecond(completed)));
  row("output tokens", fmt::format("{}, {:.1f} tokens/s, counted by {}", outputTokens, perSecond(outputTokens),
                                   byUsage == completed ? "the server's usage"
                                   : byUsage == 0       ? "chunks"
                                                  : fmt::format("usage of {} requests, chunks of others", byUsage)));
  if (shortAnswers)
    row("", fmt::format("{} answers have fewer than was asked", shortAnswers));
  row("total tokens", promptTokens ? fmt::format("{}, {:.1f} tokens/s", *promptTokens + outputTokens,
                                                 perSecond(*promptTokens + outputTokens))
                                   : "unknown: the server does not count a prompt's");
  out += fmt::format("\n{:<32}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "latency, ms", "mean", "median", "p90", "p99", "max");
  for (const auto &[name, d] : {std::pair<const char *, const Distribution &>{"time to first token, TTFT", ttft},
                                {"time per output token, TPOT", tpot},
                                {"inter-token latency, ITL", itl},
                                {"end to end, E2EL", e2el}}) {
    out += fmt::format("{:<32}", name);
    for (double v : {d.mean, d.at(50), d.at(90), d.at(99), d.most()})
      out += d.sorted.empty() ? fmt::format("{:>10}", "-") : fmt::format("{:>10.2f}", v);
    out += '\n';
  }
  return out;
}

ordered_json LoadReport::json() const {
  auto rangeOf = [](const Range &r) { return ordered_json::array({r.least, r.most}); };
  ordered_json j = {{"url", asked.url}, {"model_id", asked.model}, {"num_prompts", asked.requests}};
  j["max_concurrency"] = asked.rate ? ordered_json() : ordered_json(asked.clients);
  j["request_rate"] = !asked.rate               ? ordered_json()
                      : std::isinf(*asked.rate) ? ordered_json("inf")
                                                : ordered_json(*asked.rate);
  j["prompts"] = asked.prompts.empty() ? ordered_json() : ordered_json(asked.prompts);
  j["prompt_tokens"] = asked.prompts.empty() ? rangeOf(asked.promptTokens) : ordered_json();
  j["max_tokens"] = rangeOf(asked.maxTokens);
  j["seed"] = asked.seed;
  j["temperature"] = asked.temperature;
  j["ignore_eos"] = asked.ignoreEos;
  j["duration"] = seconds;
  j["completed"] = completed;
  j["failed"] = failed();
  j["errors"] = ordered_json::array();
  for (const Failures &f : failures)
    j["errors"].push_back({{"kind", f.kind}, {"count", f.count}, {"example", f.example}});
  j["max_concurrent_requests"] = peakInFlight;
  j["sent_request_rate"] = asked.requests > 1 ? ordered_json(sentRate) : ordered_json();
  j["max_late_ms"] = asked.rate ? ordered_json(1e3 * mostLate) : ordered_json();
  j["token_counts"] = countedBy();
  j["short_answers"] = shortAnswers;
  j["total_input_tokens"] = promptTokens ? ordered_json(*promptTokens) : ordered_json();
  j["total_output_tokens"] = outputTokens;
  j["request_throughput"] = perSecond(completed);
  j["output_throughput"] = perSecond(outputTokens);
  j["total_token_throughput"] = promptTokens ? ordered_json(perSecond(*promptTokens + outputTokens)) : ordered_json();
  for (const auto &[name, d] :
       {std::pair<const char *, const Distribution &>{"ttft", ttft}, {"tpot", tpot}, {"itl", itl}, {"e2el", e2el}})
    for (const auto &[figure, v] : {std::pair<const char *, double>{"mean", d.mean},
                                    {"median", d.at(50)},
                                    {"p90", d.at(90)},
                                    {"p99", d.at(99)},
                                    {"max", d.most()}})
      j[fmt::format("{}_{}_ms", figure, name)] = d.sorted.empty() ? ordered_json() : ordered_json(v);
  return j;
}

}  // namespace gptc::load
