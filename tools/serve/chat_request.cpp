#include "tools/serve/chat_request.h"

#include "support/diagnostics.h"

#include <ctime>

namespace gptc {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

[[noreturn]] void refuse(std::string parameter, std::string message) {
  throw RequestError{std::move(parameter), std::move(message)};
}

json taken(json &object, const char *name) {
  json value = part(object, name);
  object.erase(name);
  return value;
}

/// The text of a message. Parts that are no texts, as pictures, are for other models.
std::string contentOf(const json &content, size_t i) {
  const std::string name = fmt::format("messages[{}].content", i);
  if (content.is_null())
    return "";
  if (content.is_string())
    return content.get<std::string>();
  if (!content.is_array())
    refuse(name, "must be a text, or an array of {type: \"text\", text}");
  std::string all;
  for (const json &one : content) {
    if (part(one, "type") != "text" || !part(one, "text").is_string())
      refuse(name, "has a part that is no text");
    all += (all.empty() ? "" : "\n") + part(one, "text").get<std::string>();
  }
  return all;
}

ordered_json messagesOf(const json &messages) {
  if (messages.is_null())
    refuse("messages", "is missing");
  if (!messages.is_array() || messages.empty())
    refuse("messages", "must be an array that is not empty");
  ordered_json out = ordered_json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const json &message = messages[i];
    if (!part(message, "role").is_string())
      refuse(fmt::format("messages[{}]", i), "must be an object with a role, a text");
    ordered_json one = {{"role", part(message, "role")}};
    for (const auto &[name, value] : message.items())
      if (name != "role")
        one[name] = name == "content" ? ordered_json(contentOf(value, i)) : ordered_json(value);
    if (!one.contains("content"))
      one["content"] = "";
    out.push_back(std::move(one));
  }
  return out;
}

/// The number of scores beside each token, from OpenAI's logprobs and top_logprobs.
json scoresOf(json &object) {
  const json logProbs = taken(object, "logprobs"), top = taken(object, "top_logprobs");
  if (!logProbs.is_null() && !logProbs.is_boolean())
    refuse("logprobs", "must be true or false");
  if (!top.is_null() && logProbs != true)
    refuse("top_logprobs", "needs logprobs");
  return logProbs != true ? json() : top.is_null() ? json(0) : top;
}

}  // namespace

Conversations::Conversations(const ModelTokens &tokens) : named(tokens.named) {
  if (tokens.chatTemplate.empty()) {
    why = "the model has no chat template: it continues texts, by /v1/completions";
    return;
  }
  try {
    chat.emplace(tokens.chatTemplate);
  } catch (const ChatError &e) {
    why = "the model's chat template cannot be used: " + e.message;
  }
}

CompletionRequest Conversations::read(const json &given, const CompletionRequest &defaults,
                                      const Tokenizer &tokenizer) const {
  if (!chat)
    refuse("messages", why);
  json object = given;
  ordered_json variables = {{"messages", messagesOf(taken(object, "messages"))}, {"add_generation_prompt", true}};
  if (const json tools = taken(object, "tools"); !tools.is_null() && !tools.empty())
    refuse("tools", "are not known here");
  if (const json choice = taken(object, "tool_choice"); !choice.is_null() && choice != "none" && choice != "auto")
    refuse("tool_choice", "is not known here");
  if (const json format = taken(object, "response_format"); !format.is_null() && part(format, "type") != "text")
    refuse("response_format", "only {type: \"text\"} is known here");
  if (const json most = taken(object, "max_completion_tokens"); !most.is_null())
    object["max_tokens"] = most;
  if (const json scores = scoresOf(object); !scores.is_null())
    object["logprobs"] = scores;
  for (const char *name : {"prompt", "echo"})
    if (object.contains(name))
      refuse(name, "unknown");
  CompletionRequest request = readOptions(object, defaults);
  try {
    const MarkedText text = chat->render(variables, named, std::time(nullptr));
    tokenizer.encode(text.bytes(), request.prompt, {.parseSpecial = true, .foreign = &text.foreign()});
  } catch (const ChatError &e) {
    refuse("messages", "the model's chat template refuses them: " + e.message);
  } catch (const UserError &e) {
    refuse("messages", e.diagnostics[0].message);
  }
  if (request.prompt.empty())
    refuse("messages", "are no text for this model");
  return request;
}

}  // namespace gptc
