// The HTTP interface of OpenAI, as far as one model serves it.
#pragma once

#include "tools/serve/chat_request.h"
#include "tools/serve/engine.h"
#include "tools/serve/http.h"
#include "tools/serve/metrics.h"

#include <optional>
#include <string>
#include <vector>

namespace gptc {

struct ApiOptions {
  std::string model;              // its name
  std::vector<std::string> keys;  // of which a client must have one; none: anyone may ask
  bool onlyLocal = true;          // requests must call this machine by a name of the loopback interface
  CompletionRequest defaults;
  PromptLimits limits;
};

/// Answers
///   GET  /                      a page to talk to the model and see its tokens
///   POST /v1/completions        many prompts, as texts or tokens, n, stream, echo, logprobs: completion_request.h
///   POST /v1/chat/completions   a conversation, by the model's chat template: chat_request.h
///   GET  /v1/models             the one that is served
///   GET  /health                200 while requests are taken, else 503
///   GET  /metrics               for Prometheus, in its text format 0.0.4
/// What is refused is answered with OpenAI's {"error": {message, type, param, code}}. A client that closes its
/// connection is served no further.
class OpenAiApi {
public:
  /// All must outlive this, and what it answers.
  OpenAiApi(Engine &engine, const Tokenizer &tokenizer, const Conversations &conversations, ApiOptions options);

  static std::vector<std::pair<std::string, std::string>> routes();
  /// From any thread.
  HttpAnswer answer(const HttpRequest &request, HttpClient &client);
  HttpAnswer refuse(int status, const std::string &message) const;
  void log(const std::string &path, int status);

  /// No more requests are taken.
  void drain() { isDraining = true; }
  /// Requests that are being answered.
  int64_t active() const { return activeRequests; }

private:
  struct Refusal;
  class Active;
  struct Form;
  HttpAnswer complete(const HttpRequest &request, HttpClient &client, const Form &form);
  void requireServable(const std::vector<CompletionRequest> &requests) const;
  HttpAnswer whole(const std::shared_ptr<Job> &job, HttpClient &client, const Form &form);
  HttpAnswer streamed(const std::shared_ptr<Job> &job, HttpClient &client, const Form &form, bool withUsage);
  nlohmann::ordered_json headOf(const Form &form, const char *object) const;
  HttpAnswer models() const;
  void requireLocal(const HttpRequest &request) const;
  void requireKey(const HttpRequest &request) const;
  const TokenNames &names();
  void note(const Job &job);

  Engine &engine;
  const Tokenizer &tokenizer;
  const Conversations &conversations;
  const ApiOptions options;
  Metrics metrics;
  std::atomic<bool> isDraining = false;
  std::atomic<int64_t> activeRequests = 0;
  const int64_t started;  // seconds since 1970
  std::once_flag named;
  std::optional<TokenNames> tokenNames;
};

}  // namespace gptc
