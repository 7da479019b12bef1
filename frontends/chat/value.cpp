#include "frontends/chat/value.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace gptc::chat {

using Json = nlohmann::ordered_json;

namespace {

/// Python's repr of a str.
std::string quoted(const std::string &text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (char c : text)
    switch (c) {
    case '\n':
      out += "\\n";
      break;
    case '\t':
      out += "\\t";
      break;
    case '\r':
      out += "\\r";
      break;
    case '\\':
      out += "\\\\";
      break;
    default:
      if (c == quote)
        out += '\\';
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
        out += fmt::format("\\x{:02x}", c);
      else
        out += c;
    }
  return out + quote;
}

std::string floatText(double d) {
  if (std::isnan(d))
    return "nan";
  if (std::isinf(d))
    return d < 0 ? "-inf" : "inf";
  if (d == std::floor(d) && std::abs(d) < 1e16)
    return fmt::format("{:.1f}", d);
  return fmt::format("{}", d);
}

constexpr int mostLevels = 100;
constexpr size_t mostBytes = size_t(64) << 20;

int sign(double a, double b) { return a < b ? -1 : a > b ? 1 : 0; }

}  // namespace

void fail(std::string message) { throw TemplateError{std::move(message)}; }

const Value *Dict::find(llvm::StringRef name) const {
  const auto it = places.find(name);
  return it == places.end() ? nullptr : &items[it->second].second;
}

void Dict::set(const std::string &name, Value value) {
  const auto [it, isNew] = places.try_emplace(name, items.size());
  if (isNew)
    items.emplace_back(name, std::move(value));
  else
    items[it->second].second = std::move(value);
}

const Value *Arguments::get(size_t i, llvm::StringRef name) const {
  if (i < positional.size())
    return &positional[i];
  for (const auto &[key, value] : named)
    if (key == name)
      return &value;
  return nullptr;
}

void Value::holds(const Value &item) {
  levels = std::max(levels, item.levels + 1);
  hasNamespace |= item.hasNamespace;
  bytes += item.bytes;
  if (bytes > mostBytes)
    fail(fmt::format("a value of more than {} bytes", mostBytes));
  if (levels > mostLevels)
    fail(fmt::format("a value of more than {} levels", mostLevels));
}

Value::Value(List l) : v(std::make_shared<const List>(std::move(l))) {
  for (const Value &item : *list())
    holds(item);
}

Value::Value(Dict d) : v(std::make_shared<Dict>(std::move(d))) {
  for (const auto &[name, item] : dict()->items) {
    bytes += name.size();
    holds(item);
  }
  hasNamespace |= dict()->isNamespace;
}

Dict *Value::changeableDict() const {
  const auto *p = std::get_if<std::shared_ptr<Dict>>(&v);
  return p && (*p)->isNamespace ? p->get() : nullptr;
}

Value Value::foreign(const Json &j) {
  switch (j.type()) {
  case Json::value_t::boolean:
    return Value(j.get<bool>());
  case Json::value_t::number_integer:
    return Value(j.get<int64_t>());
  case Json::value_t::number_unsigned:
    return j.get<uint64_t>() <= INT64_MAX ? Value(j.get<int64_t>()) : Value(j.get<double>());
  case Json::value_t::number_float:
    return Value(j.get<double>());
  case Json::value_t::string:
    return Value(MarkedText(j.get<std::string>(), true));
  case Json::value_t::array: {
    List list;
    for (const Json &item : j)
      list.push_back(foreign(item));
    return Value(std::move(list));
  }
  case Json::value_t::object: {
    Dict dict;
    dict.isForeign = true;
    for (const auto &[name, item] : j.items())
      dict.set(name, foreign(item));
    return Value(std::move(dict));
  }
  default:
    return Value(None());
  }
}

bool Value::truth() const {
  if (const bool *b = boolean())
    return *b;
  if (isNumber())
    return number() != 0;
  if (const MarkedText *t = text())
    return t->size() > 0;
  if (const List *l = list())
    return !l->empty();
  if (const Dict *d = dict())
    return d->isNamespace || !d->items.empty();
  return function() != nullptr;
}

double Value::number() const {
  if (const bool *b = boolean())
    return *b ? 1 : 0;
  if (const int64_t *i = integer())
    return double(*i);
  if (const double *d = real())
    return *d;
  fail(fmt::format("{} is no number", typeName()));
}

const char *Value::typeName() const {
  static constexpr const char *names[] = {"undefined", "None", "bool", "int",     "float",
                                          "str",       "list", "dict", "function"};
  return names[v.index()];
}

MarkedText Value::str() const {
  if (const MarkedText *t = text())
    return *t;
  return MarkedText(isUndefined() ? "" : repr(), list() || dict());
}

std::string Value::repr() const {
  if (isUndefined())
    return "Undefined";
  if (isNone())
    return "None";
  if (const bool *b = boolean())
    return *b ? "True" : "False";
  if (const int64_t *i = integer())
    return fmt::format("{}", *i);
  if (const double *d = real())
    return floatText(*d);
  if (const MarkedText *t = text())
    return quoted(t->bytes());
  std::string out;
  if (const List *l = list()) {
    for (const Value &item : *l)
      out += (out.empty() ? "" : ", ") + item.repr();
    return "[" + out + "]";
  }
  if (const Dict *d = dict()) {
    if (d->isNamespace)
      return "<Namespace>";
    for (const auto &[name, item] : d->items)
      out += (out.empty() ? "" : ", ") + quoted(name) + ": " + item.repr();
    return "{" + out + "}";
  }
  return "<function>";
}

bool Value::operator==(const Value &other) const {
  if (isNumber() && other.isNumber())
    return number() == other.number();
  if (v.index() != other.v.index())
    return false;
  if (text())
    return text()->bytes() == other.text()->bytes();
  if (list())
    return *list() == *other.list();
  if (const Dict *d = dict()) {
    const Dict *e = other.dict();
    return d == e || (d->items.size() == e->items.size() && std::all_of(d->items.begin(), d->items.end(), [&](auto &i) {
                        const Value *found = e->find(i.first);
                        return found && *found == i.second;
                      }));
  }
  return isUndefined() || isNone() || function() == other.function();
}

int Value::compare(const Value &other) const {
  if (isNumber() && other.isNumber())
    return sign(number(), other.number());
  if (text() && other.text())
    return text()->bytes().compare(other.text()->bytes());
  if (list() && other.list()) {
    for (size_t i = 0; i < std::min(list()->size(), other.list()->size()); ++i)
      if (!((*list())[i] == (*other.list())[i]))
        return (*list())[i].compare((*other.list())[i]);
    return sign(double(list()->size()), double(other.list()->size()));
  }
  fail(fmt::format("{} and {} have no order", typeName(), other.typeName()));
}

}  // namespace gptc::chat
