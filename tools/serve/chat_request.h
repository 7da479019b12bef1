// Conversations, in the form of OpenAI's /v1/chat/completions.
#pragma once

#include "frontends/chat/chat_template.h"
#include "frontends/hf_folder.h"
#include "tools/serve/completion_request.h"

#include <optional>

namespace gptc {

/// The chat template of a model.
class Conversations {
public:
  /// A model without a template, or with one that is not known here, takes no conversations: problem() says why.
  explicit Conversations(const ModelTokens &tokens);
  const std::string &problem() const { return why; }

  /// Reads an object with "messages", each with a role and a content, a text or an array of {type: "text", text}, and
  /// any of n, max_tokens or max_completion_tokens, logprobs (true or false) with top_logprobs, tools, and what a
  /// completion takes but prompt and echo. What clients say is encoded without control tokens; those of the template
  /// are parsed. Without max_tokens an answer may be as long as the context. Throws RequestError.
  CompletionRequest read(const nlohmann::json &object, const CompletionRequest &defaults,
                         const Tokenizer &tokenizer) const;

private:
  std::optional<ChatTemplate> chat;
  std::string why;
  std::vector<std::pair<std::string, std::string>> named;
};

}  // namespace gptc
