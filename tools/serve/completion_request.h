// What is asked of a model: texts to continue, in the form of OpenAI's /v1/completions.
#pragma once

#include "frontends/tokenizer/tokenizer.h"
#include "runtime/serve/sample.h"
#include "support/json.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct CompletionRequest {
  std::vector<int32_t> prompt;
  std::string text;  // of the prompt; "" if it came as tokens
  SampleOptions options;
  int64_t n = 1;                    // samples of the prompt
  std::vector<std::string> stops;   // texts at which a sample ends, and of which it has none
  std::optional<int64_t> logProbs;  // how many of the likeliest tokens to score beside each token; none: no scores
  bool echo = false;                // the sample begins with the prompt
  std::vector<int32_t> ends;        // tokens that end a text
  bool ignoreEnd = false;           // go on after these
  bool parseSpecial = false;        // control tokens in the prompt's text become their tokens
  nlohmann::json id;                // given back with the results; null: none
  int64_t controlTokens = 0;        // that stand in the prompt's text
};

constexpr int64_t mostSamples = 4096, mostStops = 16, mostStopBytes = 4096, mostLogProbs = 20,
                  mostNewTokens = int64_t(1) << 40;

/// A request that cannot be served. `parameter` is the member of the object at fault, or "".
struct RequestError {
  std::string parameter, message;
};

/// Reads an object with a "prompt", a text or an array of token ids, and any of n, max_tokens, temperature, top_k,
/// top_p, min_p, repetition_penalty, seed, stop (a text or an array of up to 16), logprobs (up to 20), echo,
/// ignore_eos, id. What is absent or null is as in `defaults`. Throws RequestError.
CompletionRequest readRequest(const nlohmann::json &object, const CompletionRequest &defaults,
                              const Tokenizer &tokenizer);

/// The same without the prompt.
CompletionRequest readOptions(const nlohmann::json &object, const CompletionRequest &defaults);

/// The same for an object whose prompt may also be an array of texts, or of arrays of token ids: a request for each.
/// `most`: samples of all prompts together.
std::vector<CompletionRequest> readRequests(const nlohmann::json &object, const CompletionRequest &defaults,
                                            const Tokenizer &tokenizer, int64_t most);

/// Sets the prompt to the tokens of a text, with what the tokenizer puts before it, as <s>, once. Throws what
/// Tokenizer::encode throws.
void encodePrompt(CompletionRequest &request, const std::string &text, const Tokenizer &tokenizer);

/// The same. Throws RequestError if the text has no tokens, or if the tokenizer has none for a part of it.
void setPrompt(CompletionRequest &request, const std::string &text, const Tokenizer &tokenizer);

/// Says that so many control tokens stand in the text of a prompt, and what became of them.
void noteControlTokens(int64_t count, bool parsed);

/// What a model can take.
struct PromptLimits {
  int64_t vocabulary = 0, context = 0;
};
/// Why the prompt cannot be continued; nothing if it can.
std::optional<RequestError> promptProblem(const CompletionRequest &request, const PromptLimits &limits);

/// Why a request's numbers are out of range; nothing if they are not.
std::optional<RequestError> problemOf(const CompletionRequest &request);

}  // namespace gptc
