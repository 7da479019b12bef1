// The parts of OpenAI's interface that continue texts.
#pragma once

#include "tools/serve/chat_request.h"
#include "tools/serve/engine.h"
#include "tools/serve/openai_api.h"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// Answers
///   GET  /                      a page to talk to the model and see its tokens
///   POST /v1/completions        many prompts, as texts or tokens, n, stream, echo, logprobs: completion_request.h
///   POST /v1/chat/completions   a conversation, by the model's chat template: chat_request.h
class CompletionsApi final : public OpenAiApi {
public:
  /// All must outlive this, and what it answers.
  CompletionsApi(Engine &engine, const Tokenizer &tokenizer, const Conversations &conversations, ApiOptions options,
                 CompletionRequest defaults, PromptLimits limits);

private:
  struct Form;
  Routes ownRoutes() const override;
  HttpAnswer post(const std::string &path, nlohmann::json object, HttpClient &client) override;
  HttpAnswer page() const override;
  nlohmann::ordered_json description() const override;
  std::string metricsText() const override;

  void requireServable(const std::vector<CompletionRequest> &requests) const;
  HttpAnswer whole(const std::shared_ptr<Job> &job, HttpClient &client, const Form &form);
  HttpAnswer streamed(const std::shared_ptr<Job> &job, HttpClient &client, const Form &form, bool withUsage);
  nlohmann::ordered_json headOf(const Form &form, const char *object) const;
  const TokenNames &names();
  void note(const Job &job);

  Engine &engine;
  const Tokenizer &tokenizer;
  const Conversations &conversations;
  const CompletionRequest defaults;
  const PromptLimits limits;
  std::once_flag named;
  std::optional<TokenNames> tokenNames;
};

}  // namespace gptc
