// Cuts a chat template into text and the tokens of its tags.
#pragma once

#include <string>
#include <vector>

namespace gptc::chat {

struct Token {
  enum Kind { text, beginOutput, endOutput, beginTag, endTag, name, string, integer, real, symbol, end };
  Kind kind = end;
  std::string content;
  int line = 0;
};

/// As Jinja's lexer with trim_blocks and lstrip_blocks, which Hugging Face sets. Throws TemplateError.
std::vector<Token> lexTemplate(const std::string &source);

}  // namespace gptc::chat
