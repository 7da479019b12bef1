// The text that a conversation is for a model: chat templates of Hugging Face's models, in Jinja 3.1.
//
// Templates come with models, from anywhere: they read no files and no other templates, and their steps, depth, texts
// and results are bounded. Known are the statements for, if, set, macro, break and continue, all operators, and the
// filters, tests, methods and functions that filters.cpp and methods.cpp list; what else a template uses is an error.
#pragma once

#include "frontends/chat/marked_text.h"
#include "support/json.h"

#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gptc {

/// Why a conversation is no text for a model: what raise_exception says, or what the template cannot do.
struct ChatError {
  std::string message;
};

class ChatTemplate {
public:
  /// Throws ChatError with the line.
  explicit ChatTemplate(const std::string &source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate &&) noexcept;

  /// `variables`: messages, an array of objects with role and content, add_generation_prompt, tools, ... `tokens`:
  /// names such as bos_token with their texts. What comes from `variables` is foreign in the result. Throws ChatError.
  MarkedText render(const nlohmann::ordered_json &variables,
                    const std::vector<std::pair<std::string, std::string>> &tokens, std::time_t now) const;

private:
  struct Syntax;
  std::unique_ptr<const Syntax> syntax;
};

}  // namespace gptc
