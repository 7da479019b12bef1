#include "tools/load/completion_stream.h"

#include "support/json.h"
#include "tools/load/failure.h"
#include "tools/load/plain_text.h"

namespace gptc::load {

using nlohmann::json;

namespace {

/// A number of tokens; -1 if `value` is none.
int64_t countOf(const json &value) {
  return value.is_number_unsigned() && value.get<uint64_t>() < uint64_t(1) << 40 ? value.get<int64_t>() : -1;
}

}  // namespace

void CompletionStream::take(const std::string &data, double seconds) {
  if (done)
    throw malformed("an event behind [DONE]");
  if (data == "[DONE]") {
    done = true;
    return;
  }
  const json event = parseJsonOrDiscard(data);
  if (!event.is_object())
    throw malformed("an event that is no JSON object: " + plainText(data));
  if (const json &error = part(event, "error"); !error.is_null())
    throw Failure{"error in the stream", messageOf(event)};
  const json &choices = part(event, "choices"), &usage = part(event, "usage");
  if (!choices.is_array() && usage.is_null())
    throw malformed("an event without choices: " + plainText(data));
  if (choices.is_array() && !choices.empty()) {
    const json &text = part(choices[0], "text");
    if (!text.is_string())
      throw malformed("a choice without text: " + plainText(data));
    if (!text.get_ref<const std::string &>().empty() || part(choices[0], "finish_reason").is_null())
      chunks.push_back(seconds);
  }
  if (usage.is_object()) {
    promptTokens = countOf(part(usage, "prompt_tokens"));
    outputTokens = countOf(part(usage, "completion_tokens"));
  }
}

}  // namespace gptc::load
