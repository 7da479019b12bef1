// The syntax tree of a chat template: Jinja 3.1, but for what reads other templates, or nothing uses.
#pragma once

#include "frontends/chat/value.h"

#include <memory>
#include <string>
#include <vector>

namespace gptc::chat {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum Kind {
    literal,     // value
    name,        // text
    list,        // children
    dict,        // children: key, value, key, value, ...
    unary,       // text: "-", "+", "not"
    binary,      // text: "+", "and", "in", "~", ...
    comparison,  // operators between children
    condition,   // children: then, condition, else or null
    member,      // children[0] . text
    item,        // children: of, index
    slice,       // children: of, begin, end, step; each of the last three may be null
    call,        // children[0] is called
    filter,      // children[0] | text
    test,        // children[0] is text
    notTest,
  };
  Kind kind = literal;
  int line = 0;
  int height = 1;  // of the tree below: how deep evaluating it goes
  std::string text;
  Value value;
  std::vector<ExprPtr> children;  // behind what is listed: positional arguments of call, filter and test
  std::vector<std::string> operators;
  std::vector<std::pair<std::string, ExprPtr>> named;  // arguments
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum Kind {
    text,     // literal text
    output,   // expr
    forLoop,  // targets in expr if condition: body, otherwise
    branch,   // if expr: body, otherwise
    set,      // targets = expr, or the output of body; member: of a namespace
    macro,    // name, parameters with defaults, body
    group,    // body
    breakLoop,
    continueLoop,
  };
  Kind kind = text;
  int line = 0;
  std::string content;  // of text; the name of a macro
  std::vector<std::string> targets;
  std::string member;
  ExprPtr expr, condition;
  std::vector<ExprPtr> defaults;  // of a macro's parameters, which are `targets`; null: none
  Block body, otherwise;
};

/// Throws TemplateError with the line for what is no Jinja, or is not known here.
Block parseTemplate(const std::string &source);

}  // namespace gptc::chat
