#include "frontends/chat/chat_template.h"

#include "frontends/chat/run.h"

namespace gptc {

struct ChatTemplate::Syntax {
  chat::Block block;
};

ChatTemplate::ChatTemplate(const std::string &source) {
  try {
    syntax = std::make_unique<const Syntax>(Syntax{chat::parseTemplate(source)});
  } catch (const chat::TemplateError &e) {
    throw ChatError{e.message};
  }
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate &&) noexcept = default;

MarkedText ChatTemplate::render(const nlohmann::ordered_json &variables,
                                const std::vector<std::pair<std::string, std::string>> &tokens, std::time_t now) const {
  try {
    chat::Dict all;
    for (const auto &[name, value] : variables.items())
      all.set(name, chat::Value::foreign(value));
    for (const auto &[name, text] : tokens)
      all.set(name, chat::own(text));
    return chat::Run(std::move(all), now).render(syntax->block);
  } catch (const chat::TemplateError &e) {
    throw ChatError{e.message};
  }
}

}  // namespace gptc
