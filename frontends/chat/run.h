// Runs a chat template.
#pragma once

#include "frontends/chat/syntax.h"

#include <ctime>

namespace gptc::chat {

/// What a template may use. Templates come with models, from anywhere.
struct Limits {
  int64_t steps = 4'000'000;            // expressions evaluated, and 64 bytes or elements of what they make
  size_t bytes = size_t(64) << 20;      // of all texts made
  size_t output = size_t(8) << 20;      // of the result
  int nesting = 1000;                   // of expressions and statements in each other, calls included
  int64_t elements = int64_t(1) << 20;  // of a list
};

class Run {
public:
  /// `now`: for strftime_now.
  Run(Dict variables, std::time_t now, const Limits &limits = {});

  /// Throws TemplateError.
  MarkedText render(const Block &all);

  // For filters, tests and methods:
  void tick(int64_t n = 1);
  /// A text that the template made.
  Value made(MarkedText text);
  Value made(List list);
  Value made(Dict dict);
  /// Bytes that the template takes.
  void count(size_t more);
  Value call(const Value &function, const Arguments &arguments);
  std::time_t time() const { return now; }

private:
  enum class Flow { next, broke, continued };
  using Scope = llvm::StringMap<Value>;

  Flow run(const Block &block);
  Flow run(const Statement &s);
  Flow runLoop(const Statement &s);
  void set(const Statement &s, Value value);
  void assign(const std::vector<std::string> &targets, const Value &value, int line);
  void defineMacro(const Statement &s);
  Value callMacro(const Statement &s, const Arguments &arguments);
  void write(const MarkedText &text);
  void writeValue(const Value &value);
  MarkedText captured(const Block &block);

  Value evaluate(const Expr &e);
  Value evaluateNode(const Expr &e);
  Value lookUp(const std::string &name) const;
  Value unary(const Expr &e);
  Value binary(const Expr &e);
  Value compared(const Expr &e);
  Value sliced(const Expr &e);
  Value called(const Expr &e);
  Arguments argumentsOf(const Expr &e);
  int64_t indexOf(const Expr *e, int64_t size, int64_t otherwise);

  struct Deeper {
    explicit Deeper(Run &run) : run(run) {
      if (++run.nesting > run.limits.nesting)
        fail("the template is nested too deeply");
    }
    ~Deeper() { --run.nesting; }
    Run &run;
  };

  const Limits limits;
  const std::time_t now;
  const Dict variables;
  std::vector<Scope> scopes;
  MarkedText *out = nullptr;
  int64_t steps = 0;
  size_t bytes = 0;
  int nesting = 0;
};

/// An element of a list, a member of a dict, a character of a text; undefined if there is none.
Value itemOf(const Value &of, const Value &index);
Value memberOf(const Value &of, const std::string &name);
/// What a loop runs over. Fails for what has no elements.
List elementsOf(Run &run, const Value &value);
bool contains(Run &run, const Value &all, const Value &one);

/// Filters, tests and methods of Jinja and Python, by name. False if there is none.
bool applyFilter(Run &run, const std::string &name, const Value &value, const Arguments &arguments, Value &result);
bool applyTest(Run &run, const std::string &name, const Value &value, const Arguments &arguments, bool &result);
bool callMethod(Run &run, const Value &of, const std::string &name, const Arguments &arguments, Value &result);
/// A function that every template has; undefined if there is none of this name.
Value globalFunction(const std::string &name);

/// As Python's json.dumps without ASCII only.
std::string toJson(const Value &value, int indent);

}  // namespace gptc::chat
