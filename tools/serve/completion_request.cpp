#include "tools/serve/completion_request.h"

#include "support/diagnostics.h"
#include "support/stderr.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <limits>

namespace gptc {
namespace {

using nlohmann::json;

[[noreturn]] void refuse(std::string parameter, std::string message) {
  throw RequestError{std::move(parameter), std::move(message)};
}

/// The members of a request, and where their values go.
class Reader {
public:
  Reader(const json &object, CompletionRequest &out) : object(object), out(out) {}

  void read() {
    if (!object.is_object())
      refuse("", "this is no object");
    const std::vector<std::string> known = {"prompt",   "n",     "max_tokens",         "temperature", "top_k",
                                            "top_p",    "min_p", "repetition_penalty", "seed",        "stop",
                                            "logprobs", "echo",  "ignore_eos",         "id"};
    for (const auto &[name, value] : object.items())
      if (!llvm::is_contained(known, name)) {
        const std::string near = nearestWord(name, known);
        refuse(name, near.empty() ? "unknown" : fmt::format("unknown; is it {}?", near));
      }
    number("n", out.n);
    number("max_tokens", out.options.maxTokens);
    number("temperature", out.options.temperature);
    number("top_k", out.options.topK);
    number("top_p", out.options.topP);
    number("min_p", out.options.minP);
    number("repetition_penalty", out.options.repetitionPenalty);
    number("seed", out.options.seed);
    boolean("echo", out.echo);
    boolean("ignore_eos", out.ignoreEnd);
    if (const json &value = part(object, "logprobs"); !value.is_null()) {
      int64_t count = 0;
      number("logprobs", count);
      out.logProbs = count;
    }
    stops();
    out.id = part(object, "id");
    if (std::optional<RequestError> problem = problemOf(out))
      throw std::move(*problem);
  }

private:
  void number(const char *name, double &to) {
    const json &value = part(object, name);
    if (value.is_null())
      return;
    if (!value.is_number())
      refuse(name, "must be a number");
    to = value.get<double>();
  }
  template <class Integer> void number(const char *name, Integer &to) {
    const json &value = part(object, name);
    if (value.is_null())
      return;
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= uint64_t(std::numeric_limits<Integer>::max())
                          : value.is_number_integer() && std::is_signed_v<Integer>;
    if (!fits)
      refuse(name, value.is_number_integer() ? "is out of range" : "must be an integer");
    to = value.get<Integer>();
  }
  void boolean(const char *name, bool &to) {
    const json &value = part(object, name);
    if (value.is_null())
      return;
    if (!value.is_boolean())
      refuse(name, "must be true or false");
    to = value.get<bool>();
  }
  void stops() {
    const json &value = part(object, "stop");
    if (value.is_null())
      return;
    if (value.is_string())
      out.stops = {value.get<std::string>()};
    else if (value.is_array() && llvm::all_of(value, [](const json &v) { return v.is_string(); }))
      out.stops = value.get<std::vector<std::string>>();
    else
      refuse("stop", "must be a text or an array of texts");
  }

  const json &object;
  CompletionRequest &out;
};

bool isTokens(const json &value) {
  constexpr auto most = uint64_t(std::numeric_limits<int32_t>::max());
  return value.is_array() && !value.empty() &&
         llvm::all_of(value, [](const json &v) { return v.is_number_unsigned() && v.get<uint64_t>() <= most; });
}

void readPrompt(CompletionRequest &request, const json &value, const Tokenizer &tokenizer) {
  if (value.is_null())
    refuse("prompt", "is missing");
  if (value.is_string())
    return setPrompt(request, value.get<std::string>(), tokenizer);
  if (!isTokens(value))
    refuse("prompt", "must be a text or an array of token ids that is not empty");
  request.prompt = value.get<std::vector<int32_t>>();
}

}  // namespace

CompletionRequest readOptions(const json &object, const CompletionRequest &defaults) {
  CompletionRequest out = defaults;
  Reader(object, out).read();
  return out;
}

CompletionRequest readRequest(const json &object, const CompletionRequest &defaults, const Tokenizer &tokenizer) {
  CompletionRequest out = readOptions(object, defaults);
  readPrompt(out, part(object, "prompt"), tokenizer);
  return out;
}

std::vector<CompletionRequest> readRequests(const json &object, const CompletionRequest &defaults,
                                            const Tokenizer &tokenizer, int64_t most) {
  const CompletionRequest common = readOptions(object, defaults);
  const json &prompt = part(object, "prompt");
  const bool isMany = prompt.is_array() && !prompt.empty() &&
                      llvm::all_of(prompt, [](const json &v) { return v.is_string() || v.is_array(); });
  if (const double samples = double(common.n) * double(isMany ? prompt.size() : 1); samples > double(most))
    refuse("n", fmt::format("{:.0f} samples; at most {} are made at once", samples, most));
  std::vector<CompletionRequest> out(isMany ? prompt.size() : 1, common);
  for (size_t i = 0; i < out.size(); ++i)
    readPrompt(out[i], isMany ? prompt[i] : prompt, tokenizer);
  return out;
}

void encodePrompt(CompletionRequest &request, const std::string &text, const Tokenizer &tokenizer) {
  std::vector<int32_t> &tokens = request.prompt;
  tokens.clear();
  request.text = text;
  if (text.empty())
    return;
  request.controlTokens =
      tokenizer.encode(text, tokens, {.parseSpecial = request.parseSpecial, .addSpecial = true, .continued = true});
  if (tokens.size() > 1 && tokens[0] == tokens[1] && tokenizer.isControl(tokens[0]))
    tokens.erase(tokens.begin());  // the text has it too
}

void setPrompt(CompletionRequest &request, const std::string &text, const Tokenizer &tokenizer) {
  try {
    encodePrompt(request, text, tokenizer);
  } catch (const UserError &e) {
    refuse("prompt", e.diagnostics[0].message);
  }
  if (request.prompt.empty())
    refuse("prompt", "is empty");
}

void noteControlTokens(int64_t count, bool parsed) {
  printError("note: {} control token{} in the prompt: {}\n", count, count == 1 ? "" : "s",
             parsed ? "parsed" : "encoded as text (data.parse_special or --parse-special changes it)");
}

std::optional<RequestError> promptProblem(const CompletionRequest &r, const PromptLimits &limits) {
  for (int32_t token : r.prompt)
    if (token >= limits.vocabulary)
      return RequestError{
          "prompt",
          fmt::format("token {} is beyond the vocabulary of {}: use the tokenizer that the model was trained with",
                      token, limits.vocabulary)};
  if (r.echo && r.logProbs && int64_t(r.prompt.size()) > limits.context)
    return RequestError{"prompt", fmt::format("{} tokens, of which the context of {} holds no log-probabilities",
                                              r.prompt.size(), limits.context)};
  return std::nullopt;
}

std::optional<RequestError> problemOf(const CompletionRequest &r) {
  const SampleOptions &o = r.options;
  // Ranges are said so that NaN is outside.
  if (!(r.n >= 1 && r.n <= mostSamples))
    return RequestError{"n", fmt::format("must be from 1 to {}", mostSamples)};
  if (!(o.maxTokens >= 0 && o.maxTokens <= mostNewTokens))
    return RequestError{"max_tokens", "must be from 0 to 2^40"};
  if (o.maxTokens == 0 && !r.echo)
    return RequestError{"max_tokens", "must be at least 1 without echo"};
  if (!(o.temperature >= 0 && o.temperature <= 100))
    return RequestError{"temperature", "must be from 0 to 100"};
  if (!(o.topK >= 0 && o.topK <= int64_t(1) << 31))
    return RequestError{"top_k", "must be from 0 to 2^31"};
  if (!(o.topP >= 1e-9 && o.topP <= 1))
    return RequestError{"top_p", "must be above 0, at most 1"};
  if (!(o.minP >= 0 && o.minP <= 1))
    return RequestError{"min_p", "must be from 0 to 1"};
  if (!(o.repetitionPenalty >= 0.01 && o.repetitionPenalty <= 100))
    return RequestError{"repetition_penalty", "must be from 0.01 to 100"};
  if (r.logProbs && !(*r.logProbs >= 0 && *r.logProbs <= mostLogProbs))
    return RequestError{"logprobs", fmt::format("must be from 0 to {}", mostLogProbs)};
  if (int64_t(r.stops.size()) > mostStops)
    return RequestError{"stop", fmt::format("has {} texts; at most {} are taken", r.stops.size(), mostStops)};
  if (llvm::any_of(r.stops, [](const std::string &s) { return int64_t(s.size()) > mostStopBytes; }))
    return RequestError{"stop", fmt::format("has a text of more than {} bytes", mostStopBytes)};
  if (llvm::is_contained(r.stops, std::string()))
    return RequestError{"stop", "has an empty text"};
  return std::nullopt;
}

}  // namespace gptc
