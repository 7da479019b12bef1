#include "tools/load/workload.h"

#include "ir/random.h"
#include "support/diagnostics.h"
#include "support/words.h"
#include "tools/load/plain_text.h"

#include "llvm/ADT/StringRef.h"

#include <cmath>
#include <limits>

namespace gptc::load {

using nlohmann::json;

namespace {

/// What random numbers are drawn for.
enum Stream : uint32_t { promptLength, answerLength, promptToken, arrival, warmup = 16 };

/// One of the range, each as likely to within the range's share of 2^32.
int64_t draw(const Range &range, RandomKey key, uint64_t index) {
  const auto values = uint64_t(range.most - range.least + 1);
  return range.least + int64_t((randomBits(key, index) * values) >> 32);
}

}  // namespace

std::string Range::str() const { return least == most ? fmt::format("{}", least) : fmt::format("{}..{}", least, most); }

Range parseRange(const std::string &text, const char *option) {
  const llvm::StringRef t = text;
  const size_t dots = t.find("..");
  const llvm::StringRef least = t.substr(0, dots), most = dots == llvm::StringRef::npos ? least : t.substr(dots + 2);
  Range r;
  auto isNumber = [](llvm::StringRef word, int64_t &to) {
    const std::optional<int64_t> n = parseWholeTokens(word, 1, int64_t(1) << 30);
    to = n.value_or(0);
    return n.has_value();
  };
  if (!isNumber(least, r.least) || !isNumber(most, r.most) || r.least > r.most)
    throw UserError(ErrorCode::Usage, fmt::format("{} {} is no number of tokens", option, text),
                    "write one from 1 to 2^30, or two of them in order with .. between, as 32..128 or 2K..8K");
  return r;
}

double parseRate(const std::string &text) {
  double rate = 0;
  if (text == "inf")
    return std::numeric_limits<double>::infinity();
  if (llvm::StringRef(text).getAsDouble(rate) || !(rate >= 1e-6 && rate <= 1e6))
    throw UserError(ErrorCode::Usage, fmt::format("--rate {} is no number of requests in a second", text),
                    "write one from 0.000001 to 1000000, or inf for all at once");
  return rate;
}

Workload::Workload(WorkloadOptions options, const std::string &text, bool isJson, const std::string &name)
    : options(options) {
  llvm::StringRef rest = text;
  for (int64_t line = 1; !rest.empty(); ++line) {
    llvm::StringRef l;
    std::tie(l, rest) = rest.split('\n');
    l.consume_back("\r");
    if (l.trim().empty())
      continue;
    auto refuse = [&](const char *why) {
      throw UserError(ErrorCode::DataInvalid, fmt::format("{}, line {}: {}", name, line, why));
    };
    if (!isJson) {
      prompts.push_back({{"prompt", l.str()}});
      continue;
    }
    json object = parseJsonOrDiscard(std::string_view(l));
    if (!object.is_object())
      refuse("this is no JSON object");
    const json &prompt = part(object, "prompt"), &most = part(object, "max_tokens"), &n = part(object, "n");
    bool isTokens = prompt.is_array() && !prompt.empty();
    for (size_t i = 0; isTokens && i < prompt.size(); ++i)
      isTokens = prompt[i].is_number_unsigned();
    if (!isTokens && !(prompt.is_string() && !prompt.get_ref<const std::string &>().empty()))
      refuse("prompt must be a text or an array of token ids that is not empty");
    if (!most.is_null() &&
        !(most.is_number_unsigned() && most.get<uint64_t>() >= 1 && most.get<uint64_t>() <= uint64_t(1) << 30))
      refuse("max_tokens must be an integer from 1 to 2^30");
    if (!n.is_null() && n != 1)
      refuse("n must be 1: times are taken of one answer");
    object.erase("id");
    prompts.push_back(std::move(object));
  }
  if (prompts.empty())
    throw UserError(ErrorCode::DataInvalid, fmt::format("{} has no prompt", name), "write one on each line");
}

Workload::Request Workload::request(int64_t index, bool isWarmup) const {
  auto key = [&](Stream stream) {
    return randomKey(options.seed, uint64_t(index), isWarmup ? stream + warmup : stream, 0);
  };
  Request r;
  json body = prompts.empty() ? json::object() : prompts[size_t(index) % prompts.size()];
  if (prompts.empty()) {
    json &prompt = body["prompt"] = json::array();
    const int64_t tokens = draw(options.promptTokens, key(promptLength), 0);
    for (int64_t i = 0; i < tokens; ++i)
      prompt.push_back(draw({0, options.vocabulary - 1}, key(promptToken), uint64_t(i)));
  }
  if (const json &prompt = body["prompt"]; prompt.is_array())
    r.promptTokens = int64_t(prompt.size());
  if (part(body, "max_tokens").is_null())
    body["max_tokens"] = draw(options.maxTokens, key(answerLength), 0);
  r.maxTokens = body["max_tokens"].get<int64_t>();
  if (part(body, "temperature").is_null())
    body["temperature"] = options.temperature;
  if (options.ignoreEos)
    body["ignore_eos"] = true;
  body["model"] = model;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  r.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
  return r;
}

std::vector<double> Workload::arrivals(int64_t count) const {
  if (!options.rate || count == 0)
    return {};
  std::vector<double> times(size_t(count), 0.0);
  if (std::isinf(*options.rate))
    return times;
  for (size_t i = 1; i < times.size(); ++i)
    times[i] = times[i - 1] - std::log1p(-randomUniform(randomKey(options.seed, i, arrival, 0), 0));
  const double scale = times.back() > 0 ? double(count - 1) / *options.rate / times.back() : 0;
  for (double &t : times)
    t *= scale;
  return times;
}

}  // namespace gptc::load
