// The text that a request yields.
#pragma once

#include "runtime/serve/stop_finder.h"
#include "runtime/serve/token_scores.h"
#include "tools/serve/completion_request.h"

namespace gptc {

/// A name for each token, no two the same: its text, or `token_id:N` if the text is not valid UTF-8, is empty, is that
/// of several tokens, or if the tokenizer lacks the token.
class TokenNames {
public:
  explicit TokenNames(const Tokenizer &tokenizer);
  std::string operator()(int32_t token) const;

private:
  std::vector<std::string> names;
};

/// One sample of a request, from its tokens.
class Completion {
public:
  /// All must outlive this. `names` are needed for log-probabilities only.
  Completion(const CompletionRequest &request, const Tokenizer &tokenizer, const TokenNames *names);
  /// The scores of the prompt's tokens from the second on, for a request with echo and log-probabilities.
  void prompt(const std::vector<TokenScores> &scores);
  /// Adds a token. Returns whether the sample goes on.
  bool token(int32_t id, const TokenScores *scores);
  /// No more tokens come.
  void end();

  /// The text so far, without what may be the start of a stop.
  const std::string &text() const { return said; }
  bool ended() const { return reason != nullptr; }
  /// "stop" at a stop or an end of the text, "length" at max_tokens or a full context.
  const char *finishReason() const { return reason; }
  int64_t tokens() const { return made; }
  /// OpenAI's `logprobs`: tokens, token_logprobs, top_logprobs and text_offset, in characters, of the tokens from
  /// number `from` on. Null if not asked for.
  nlohmann::json logProbabilities(size_t from = 0) const;
  /// The same as `logprobs` of OpenAI's chat completions.
  nlohmann::json chatLogProbabilities(size_t from = 0) const;
  /// How many tokens these have.
  size_t listedTokens() const { return listed.size(); }

private:
  void say(const std::string &text, bool untilStop);
  void list(int32_t id, const TokenScores *scores);

  const CompletionRequest &request;
  const Tokenizer &tokenizer;
  const TokenNames *names;
  TextStream stream;
  StopFinder stops;
  std::string said;
  int64_t made = 0, characters = 0;
  bool sawEnd = false;
  const char *reason = nullptr;
  struct Listed {
    int32_t token;
    int64_t offset;  // in characters
    std::optional<TokenScores> scores;
  };
  std::vector<Listed> listed;  // if log-probabilities are asked for
};

}  // namespace gptc
