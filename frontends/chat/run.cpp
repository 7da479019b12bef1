#include "frontends/chat/run.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace gptc::chat {

namespace {

/// Steps of a function that looks at all of a value.
int64_t costOf(const Value &value) { return int64_t(value.size() / 64); }

/// Of a number that is not real.
int64_t wholeOf(const Value &value) { return value.integer() ? *value.integer() : *value.boolean() ? 1 : 0; }

}  // namespace

Run::Run(Dict variables, std::time_t now, const Limits &limits)
    : limits(limits), now(now), variables(std::move(variables)), scopes(1) {}

MarkedText Run::render(const Block &all) { return captured(all); }

void Run::tick(int64_t n) {
  steps += n;
  if (steps > limits.steps)
    fail(fmt::format("the template takes more than {} steps", limits.steps));
}

Value Run::made(MarkedText text) {
  count(text.size());
  tick(int64_t(text.size() / 64));
  return Value(std::move(text));
}

Value Run::made(Dict dict) {
  for (const auto &[name, item] : dict.items)
    count(name.size() + sizeof(Value));
  tick(int64_t(dict.items.size()));
  return Value(std::move(dict));
}

void Run::count(size_t more) {
  bytes += more;
  if (bytes > limits.bytes)
    fail(fmt::format("the template makes texts of more than {} bytes", limits.bytes));
}

Value Run::made(List list) {
  if (int64_t(list.size()) > limits.elements)
    fail(fmt::format("a list of more than {} elements", limits.elements));
  tick(int64_t(list.size()));
  count(list.size() * sizeof(Value));
  return Value(std::move(list));
}

Value Run::call(const Value &function, const Arguments &arguments) {
  if (!function.function())
    fail(fmt::format("{} cannot be called", function.typeName()));
  tick();
  return (*function.function())(*this, arguments);
}

// ---- statements ----

void Run::write(const MarkedText &text) {
  if (out->size() + text.size() > limits.output)
    fail(fmt::format("the template writes more than {} bytes", limits.output));
  tick(int64_t(text.size() / 64));
  out->append(text);
}

void Run::writeValue(const Value &value) {
  tick(costOf(value));
  write(value.str());
}

MarkedText Run::captured(const Block &block) {
  MarkedText text;
  MarkedText *const outer = std::exchange(out, &text);
  run(block);
  out = outer;
  return text;
}

Run::Flow Run::run(const Block &block) {
  for (const auto &s : block)
    if (const Flow flow = run(*s); flow != Flow::next)
      return flow;
  return Flow::next;
}

Run::Flow Run::run(const Statement &s) {
  const Deeper deeper(*this);
  tick();
  switch (s.kind) {
  case Statement::text:
    write(MarkedText(s.content));
    return Flow::next;
  case Statement::output:
    writeValue(evaluate(*s.expr));
    return Flow::next;
  case Statement::forLoop:
    return runLoop(s);
  case Statement::branch:
    return run(evaluate(*s.expr).truth() ? s.body : s.otherwise);
  case Statement::set:
    set(s, s.expr ? evaluate(*s.expr) : made(captured(s.body)));
    return Flow::next;
  case Statement::macro:
    defineMacro(s);
    return Flow::next;
  case Statement::group:
    return run(s.body);
  case Statement::breakLoop:
    return Flow::broke;
  case Statement::continueLoop:
    return Flow::continued;
  }
  return Flow::next;
}

Run::Flow Run::runLoop(const Statement &s) {
  List elements = elementsOf(*this, evaluate(*s.expr));
  if (s.condition) {
    List kept;
    for (const Value &element : elements) {
      scopes.emplace_back();
      assign(s.targets, element, s.line);
      if (evaluate(*s.condition).truth())
        kept.push_back(element);
      scopes.pop_back();
    }
    elements = std::move(kept);
  }
  if (elements.empty())
    return run(s.otherwise);
  const auto count = int64_t(elements.size());
  for (int64_t i = 0; i < count; ++i) {
    tick();
    Dict loop;
    loop.set("index", Value(i + 1));
    loop.set("index0", Value(i));
    loop.set("revindex", Value(count - i));
    loop.set("revindex0", Value(count - i - 1));
    loop.set("first", Value(i == 0));
    loop.set("last", Value(i == count - 1));
    loop.set("length", Value(count));
    if (i > 0)
      loop.set("previtem", elements[size_t(i - 1)]);
    if (i + 1 < count)
      loop.set("nextitem", elements[size_t(i + 1)]);
    scopes.emplace_back();
    scopes.back()["loop"] = Value(std::move(loop));
    assign(s.targets, elements[size_t(i)], s.line);
    const Flow flow = run(s.body);
    scopes.pop_back();
    if (flow == Flow::broke)
      break;
  }
  return Flow::next;
}

void Run::assign(const std::vector<std::string> &targets, const Value &value, int line) {
  if (targets.size() == 1) {
    scopes.back()[targets[0]] = value;
    return;
  }
  const List parts = elementsOf(*this, value);
  if (parts.size() != targets.size())
    fail(fmt::format("line {}: {} values for {} names", line, parts.size(), targets.size()));
  for (size_t i = 0; i < parts.size(); ++i)
    scopes.back()[targets[i]] = parts[i];
}

void Run::set(const Statement &s, Value value) {
  if (s.member.empty())
    return assign(s.targets, value, s.line);
  Dict *const space = lookUp(s.targets[0]).changeableDict();
  if (!space)
    fail(fmt::format("line {}: {} is no namespace", s.line, s.targets[0]));
  if (value.holdsNamespace())
    fail(fmt::format("line {}: a namespace in a namespace", s.line));
  space->set(s.member, std::move(value));
}

void Run::defineMacro(const Statement &s) {
  scopes.back()[s.content] =
      Value(Function([&s](Run &run, const Arguments &arguments) { return run.callMacro(s, arguments); }));
}

/// A macro sees what stands outside of all blocks, and its parameters.
Value Run::callMacro(const Statement &s, const Arguments &arguments) {
  std::vector<Scope> outer = std::move(scopes);
  scopes.clear();
  scopes.push_back(std::move(outer[0]));
  scopes.emplace_back();
  if (arguments.positional.size() > s.targets.size())
    fail(fmt::format("macro {} takes {} arguments", s.content, s.targets.size()));
  for (size_t i = 0; i < s.targets.size(); ++i) {
    const Value *given = arguments.get(i, s.targets[i]);
    Value value = given ? *given : s.defaults[i] ? evaluate(*s.defaults[i]) : Value(Undefined{s.targets[i]});
    scopes.back()[s.targets[i]] = std::move(value);
  }
  Value result = made(captured(s.body));
  outer[0] = std::move(scopes[0]);
  scopes = std::move(outer);
  return result;
}

// ---- expressions ----

Value Run::evaluate(const Expr &e) {
  const Deeper deeper(*this);
  tick();
  return evaluateNode(e);
}

Value Run::lookUp(const std::string &name) const {
  for (size_t i = scopes.size(); i-- > 0;)
    if (const auto it = scopes[i].find(name); it != scopes[i].end())
      return it->second;
  if (const Value *value = variables.find(name))
    return *value;
  Value global = globalFunction(name);
  return global.isUndefined() ? Value(Undefined{name}) : global;
}

Value Run::evaluateNode(const Expr &e) {
  switch (e.kind) {
  case Expr::literal:
    return e.value;
  case Expr::name:
    return lookUp(e.text);
  case Expr::list: {
    List list;
    for (const ExprPtr &child : e.children)
      list.push_back(evaluate(*child));
    return made(std::move(list));
  }
  case Expr::dict: {
    Dict dict;
    for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
      const MarkedText name = evaluate(*e.children[i]).str();
      dict.isForeign |= !name.foreign().empty();
      dict.set(name.bytes(), evaluate(*e.children[i + 1]));
    }
    return made(std::move(dict));
  }
  case Expr::unary:
    return unary(e);
  case Expr::binary:
    return binary(e);
  case Expr::comparison:
    return compared(e);
  case Expr::condition:
    return evaluate(*e.children[1]).truth() ? evaluate(*e.children[0])
           : e.children[2]                  ? evaluate(*e.children[2])
                                            : Value();
  case Expr::member:
    return memberOf(evaluate(*e.children[0]), e.text);
  case Expr::item: {
    const Value of = evaluate(*e.children[0]);
    tick(of.text() ? int64_t(of.text()->size() / 64) : 0);
    return itemOf(of, evaluate(*e.children[1]));
  }
  case Expr::slice:
    return sliced(e);
  case Expr::call:
    return called(e);
  case Expr::filter: {
    const Value value = evaluate(*e.children[0]);
    tick(costOf(value));
    Value result;
    if (!applyFilter(*this, e.text, value, argumentsOf(e), result))
      fail(fmt::format("line {}: filter {} is not known here", e.line, e.text));
    return result;
  }
  case Expr::test:
  case Expr::notTest: {
    const Value value = evaluate(*e.children[0]);
    bool result = false;
    if (!applyTest(*this, e.text, value, argumentsOf(e), result))
      fail(fmt::format("line {}: test {} is not known here", e.line, e.text));
    return Value(result == (e.kind == Expr::test));
  }
  }
  return Value();
}

Value Run::unary(const Expr &e) {
  const Value value = evaluate(*e.children[0]);
  if (e.text == "not")
    return Value(!value.truth());
  if (!value.isNumber())
    fail(fmt::format("line {}: {} of {}", e.line, e.text, value.typeName()));
  if (value.real())
    return Value(e.text == "-" ? -*value.real() : *value.real());
  const int64_t i = wholeOf(value);
  return Value(e.text == "-" ? int64_t(0 - uint64_t(i)) : i);
}

namespace {

Value arithmetic(const std::string &op, const Value &a, const Value &b) {
  if (!a.real() && !b.real() && op != "/") {
    const int64_t x = wholeOf(a), y = wholeOf(b);
    int64_t r = 0;
    const bool overflows = op == "+"   ? __builtin_add_overflow(x, y, &r)
                           : op == "-" ? __builtin_sub_overflow(x, y, &r)
                           : op == "*" ? __builtin_mul_overflow(x, y, &r)
                                       : false;
    if (overflows)
      fail("a number beyond 64 bits");
    if (op == "+" || op == "-" || op == "*")
      return Value(r);
    if (op == "**") {
      const double power = std::pow(double(x), double(y));
      return y >= 0 && std::abs(power) < 9e15 ? Value(int64_t(power)) : Value(power);
    }
    if (y == 0)
      fail("division by zero");
    if (y == -1) {
      if (op == "//" && x == INT64_MIN)
        fail("a number beyond 64 bits");
      return Value(op == "%" ? int64_t(0) : -x);
    }
    const int64_t rest = x % y != 0 && (x % y < 0) != (y < 0) ? x % y + y : x % y;
    return Value(op == "%" ? rest : (x - rest) / y);
  }
  const double x = a.number(), y = b.number();
  if (op == "+" || op == "-" || op == "*")
    return Value(op == "+" ? x + y : op == "-" ? x - y : x * y);
  if (op == "**")
    return Value(std::pow(x, y));
  if (y == 0)
    fail("division by zero");
  if (op == "/")
    return Value(x / y);
  return Value(op == "//" ? std::floor(x / y) : x - y * std::floor(x / y));
}

}  // namespace

Value Run::binary(const Expr &e) {
  Value a = evaluate(*e.children[0]);
  if (e.text == "and" || e.text == "or")
    return a.truth() == (e.text == "or") ? a : evaluate(*e.children[1]);
  const Value b = evaluate(*e.children[1]);
  tick(costOf(a) + costOf(b));
  if (e.text == "~" || (e.text == "+" && a.text() && b.text())) {
    MarkedText joined = a.str();
    joined.append(b.str());
    return made(std::move(joined));
  }
  if (e.text == "+" && a.list() && b.list()) {
    List joined = *a.list();
    joined.insert(joined.end(), b.list()->begin(), b.list()->end());
    return made(std::move(joined));
  }
  if (e.text == "*" && a.text() && b.integer()) {
    MarkedText repeated;
    if (*b.integer() > 0 && double(*b.integer()) * double(a.text()->size()) > double(limits.bytes))
      fail(fmt::format("the template makes texts of more than {} bytes", limits.bytes));
    for (int64_t i = 0; i < *b.integer() && a.text()->size() > 0; ++i)
      repeated.append(*a.text());
    return made(std::move(repeated));
  }
  if (a.isNumber() && b.isNumber())
    return arithmetic(e.text, a, b);
  const Value &wrong = a.isUndefined() ? a : b;
  if (wrong.isUndefined())
    fail(fmt::format("line {}: {} of what is not defined", e.line, e.text));
  fail(fmt::format("line {}: {} of {} and {}", e.line, e.text, a.typeName(), b.typeName()));
}

Value Run::compared(const Expr &e) {
  Value left = evaluate(*e.children[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = evaluate(*e.children[i + 1]);
    tick(costOf(left) + costOf(right));
    const std::string &op = e.operators[i];
    bool holds = false;
    if (op == "in" || op == "not in") {
      holds = contains(*this, right, left) == (op == "in");
    } else if (op == "==" || op == "!=") {
      tick(int64_t(left.text() ? left.text()->size() / 64 : left.list() ? left.list()->size() : 0));
      holds = (left == right) == (op == "==");
    } else {
      const int order = left.compare(right);
      holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
    }
    if (!holds)
      return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

int64_t Run::indexOf(const Expr *e, int64_t size, int64_t otherwise) {
  if (!e)
    return otherwise;
  const Value value = evaluate(*e);
  if (value.isNone())
    return otherwise;
  if (!value.integer())
    fail(fmt::format("line {}: an index of {}", e->line, value.typeName()));
  const int64_t i = *value.integer();
  return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size);
}

Value Run::sliced(const Expr &e) {
  const Value of = evaluate(*e.children[0]);
  int64_t step = 1;
  if (e.children[3]) {
    const Value value = evaluate(*e.children[3]);
    if (!value.isNone() && (!value.integer() || (*value.integer() != 1 && *value.integer() != -1)))
      fail(fmt::format("line {}: steps of a slice other than 1 and -1 are not known here", e.line));
    step = value.isNone() ? 1 : *value.integer();
  }
  if (step == -1 && (e.children[1] || e.children[2]))
    fail(fmt::format("line {}: a part of a reversed list is not known here", e.line));
  if (const MarkedText *t = of.text()) {
    if (step < 0)
      fail(fmt::format("line {}: a reversed text is not known here", e.line));
    tick(int64_t(t->size() / 64));
    const auto size = int64_t(countCharacters(t->bytes()));
    const int64_t begin = indexOf(e.children[1].get(), size, 0), end = indexOf(e.children[2].get(), size, size);
    if (begin >= end)
      return own("");
    return made(t->part(offsetOfCharacter(t->bytes(), size_t(begin)), offsetOfCharacter(t->bytes(), size_t(end))));
  }
  if (!of.list())
    fail(fmt::format("line {}: a slice of {}", e.line, of.typeName()));
  const List &l = *of.list();
  const auto size = int64_t(l.size());
  const int64_t begin = indexOf(e.children[1].get(), size, 0), end = indexOf(e.children[2].get(), size, size);
  List part;
  if (begin < end)
    part.assign(l.begin() + begin, l.begin() + end);
  if (step < 0)
    std::reverse(part.begin(), part.end());
  return made(std::move(part));
}

Arguments Run::argumentsOf(const Expr &e) {
  Arguments out;
  for (size_t i = 1; i < e.children.size(); ++i)
    out.positional.push_back(evaluate(*e.children[i]));
  for (const auto &[name, value] : e.named)
    out.named.emplace_back(name, evaluate(*value));
  return out;
}

Value Run::called(const Expr &e) {
  const Expr &callee = *e.children[0];
  if (callee.kind == Expr::member) {
    const Value of = evaluate(*callee.children[0]);
    const Arguments arguments = argumentsOf(e);
    tick(costOf(of));
    Value result;
    if (callMethod(*this, of, callee.text, arguments, result))
      return result;
    const Value member = memberOf(of, callee.text);
    if (!member.function())
      fail(fmt::format("line {}: {} has no method {} here", e.line, of.typeName(), callee.text));
    return call(member, arguments);
  }
  const Value function = evaluate(callee);
  if (!function.function())
    fail(fmt::format("line {}: {} cannot be called", e.line, callee.kind == Expr::name ? callee.text : "this"));
  return call(function, argumentsOf(e));
}

// ---- parts of values ----

Value memberOf(const Value &of, const std::string &name) {
  if (of.isUndefined())
    fail(fmt::format("{} of what is not defined", name));
  if (const Dict *d = of.dict())
    if (const Value *found = d->find(name))
      return *found;
  return Value(Undefined{name});
}

Value itemOf(const Value &of, const Value &index) {
  if (of.isUndefined())
    fail("an element of what is not defined");
  if (const MarkedText *name = index.text(); name && of.dict())
    return memberOf(of, name->bytes());
  if (!index.integer())
    return Value();
  int64_t i = *index.integer();
  if (const List *l = of.list()) {
    i = i < 0 ? i + int64_t(l->size()) : i;
    return i >= 0 && i < int64_t(l->size()) ? (*l)[size_t(i)] : Value();
  }
  if (const MarkedText *t = of.text()) {
    const auto size = int64_t(countCharacters(t->bytes()));
    i = i < 0 ? i + size : i;
    if (i >= 0 && i < size)
      return Value(t->part(offsetOfCharacter(t->bytes(), size_t(i)), offsetOfCharacter(t->bytes(), size_t(i + 1))));
  }
  return Value();
}

List elementsOf(Run &run, const Value &value) {
  List out;
  if (value.list()) {
    out = *value.list();
  } else if (const Dict *d = value.dict(); d && !d->isNamespace) {
    for (const auto &[name, item] : d->items)
      out.push_back(Value(MarkedText(name, d->isForeign)));
  } else if (const MarkedText *t = value.text()) {
    for (size_t begin = 0; begin < t->size();) {
      const size_t end = begin + offsetOfCharacter(std::string_view(t->bytes()).substr(begin), 1);
      out.push_back(Value(t->part(begin, end)));
      begin = end;
    }
  } else if (!value.isUndefined()) {
    fail(fmt::format("{} has no elements", value.typeName()));
  }
  run.tick(int64_t(out.size()));
  return out;
}

bool contains(Run &run, const Value &all, const Value &one) {
  if (const MarkedText *t = all.text()) {
    if (!one.text())
      fail(fmt::format("{} in a text", one.typeName()));
    run.tick(int64_t(t->size() / 64));
    return t->bytes().find(one.text()->bytes()) != std::string::npos;
  }
  if (const Dict *d = all.dict())
    return one.text() && d->find(one.text()->bytes());
  if (all.isUndefined())
    return false;
  if (!all.list())
    fail(fmt::format("{} has no elements", all.typeName()));
  run.tick(int64_t(all.list()->size()));
  return std::find(all.list()->begin(), all.list()->end(), one) != all.list()->end();
}

}  // namespace gptc::chat
