#include "frontends/chat/run.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fmt/format.h>

namespace gptc::chat {
namespace {

int64_t integerOf(const Value *value, int64_t otherwise) {
  if (!value || value->isNone())
    return otherwise;
  if (!value->isNumber())
    fail(fmt::format("a number is {}", value->typeName()));
  return int64_t(std::clamp(value->number(), -1e15, 1e15));
}

std::string jsonText(const std::string &text) {
  return nlohmann::ordered_json(text).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void appendJson(std::string &out, const Value &value, int indent, int level) {
  const std::string newLine = indent < 0 ? "" : "\n" + std::string(size_t(indent) * size_t(level + 1), ' '),
                    lastLine = indent < 0 ? "" : "\n" + std::string(size_t(indent) * size_t(level), ' '),
                    comma = indent < 0 ? ", " : ",";
  if (const List *l = value.list()) {
    out += '[';
    for (size_t i = 0; i < l->size(); ++i) {
      out += (i ? comma : "") + newLine;
      appendJson(out, (*l)[i], indent, level + 1);
    }
    out += (l->empty() ? "" : lastLine) + "]";
  } else if (const Dict *d = value.dict()) {
    out += '{';
    for (size_t i = 0; i < d->items.size(); ++i) {
      out += (i ? comma : "") + newLine + jsonText(d->items[i].first) + ": ";
      appendJson(out, d->items[i].second, indent, level + 1);
    }
    out += (d->items.empty() ? "" : lastLine) + "}";
  } else if (const MarkedText *t = value.text()) {
    out += jsonText(t->bytes());
  } else if (value.isNone()) {
    out += "null";
  } else if (const bool *b = value.boolean()) {
    out += *b ? "true" : "false";
  } else if (value.isNumber()) {
    out += value.repr();
  } else {
    fail(fmt::format("{} cannot be written as JSON", value.typeName()));
  }
}

Value joined(Run &run, const Value &value, const Arguments &a) {
  const Value *between = a.get(0, "d"), *attribute = a.get(1, "attribute");
  MarkedText out;
  bool isFirst = true;
  for (const Value &item : elementsOf(run, value)) {
    if (!std::exchange(isFirst, false) && between)
      out.append(between->str());
    out.append((attribute ? memberOf(item, attribute->str().bytes()) : item).str());
    run.tick(int64_t(item.text() ? item.text()->size() / 64 : 0));
  }
  return run.made(std::move(out));
}

/// map, select, reject, selectattr, rejectattr.
Value picked(Run &run, const std::string &name, const Value &value, const Arguments &a) {
  const bool byAttribute = llvm::StringRef(name).ends_with("attr"),
             rejects = llvm::StringRef(name).starts_with("reject");
  const Value *attribute = byAttribute ? a.get(0, "attribute") : nullptr;
  if (byAttribute && !attribute)
    fail(name + " without an attribute");
  const size_t at = byAttribute ? 1 : 0;
  Arguments more;
  if (a.positional.size() > at + 1)
    more.positional.assign(a.positional.begin() + ptrdiff_t(at) + 1, a.positional.end());
  List out;
  for (const Value &item : elementsOf(run, value)) {
    const Value looked = attribute ? memberOf(item, attribute->str().bytes()) : item;
    bool holds = looked.truth();
    if (const Value *test = a.get(at, "test"); test && !applyTest(run, test->str().bytes(), looked, more, holds))
      fail(fmt::format("test {} is not known here", test->str().bytes()));
    if (holds != rejects)
      out.push_back(item);
  }
  return run.made(std::move(out));
}

Value mapped(Run &run, const Value &value, const Arguments &a) {
  List out;
  const Value *filter = a.positional.empty() ? nullptr : &a.positional[0], *attribute = a.get(SIZE_MAX, "attribute"),
              *otherwise = a.get(SIZE_MAX, "default");
  Arguments more;
  if (a.positional.size() > 1)
    more.positional.assign(a.positional.begin() + 1, a.positional.end());
  for (const Value &item : elementsOf(run, value)) {
    Value result;
    if (attribute) {
      result = attribute->integer() ? itemOf(item, *attribute) : memberOf(item, attribute->str().bytes());
      if (result.isUndefined() && otherwise)
        result = *otherwise;
    } else if (!filter || !applyFilter(run, filter->str().bytes(), item, more, result)) {
      fail("map without a filter that is known here, or an attribute");
    }
    out.push_back(std::move(result));
  }
  return run.made(std::move(out));
}

Value sorted(Run &run, const Value &value, const Arguments &a) {
  List all = elementsOf(run, value);
  const Value *reverse = a.get(0, "reverse"), *attribute = a.get(2, "attribute");
  auto key = [&](const Value &v) { return attribute ? memberOf(v, attribute->str().bytes()) : v; };
  run.tick(int64_t(all.size()) * 20);
  std::stable_sort(all.begin(), all.end(), [&](const Value &x, const Value &y) { return key(x).compare(key(y)) < 0; });
  if (reverse && reverse->truth())
    std::reverse(all.begin(), all.end());
  return run.made(std::move(all));
}

Value itemsOf(Run &run, const Value &value) {
  if (!value.dict() || value.dict()->isNamespace)
    fail(fmt::format("items of {}", value.typeName()));
  List out;
  for (const auto &[name, item] : value.dict()->items)
    out.push_back(Value(List{Value(MarkedText(name, value.dict()->isForeign)), item}));
  return run.made(std::move(out));
}

Value uniqueOf(Run &run, const Value &value) {
  List out;
  for (const Value &item : elementsOf(run, value)) {
    run.tick(int64_t(out.size()));
    if (std::find(out.begin(), out.end(), item) == out.end())
      out.push_back(item);
  }
  return run.made(std::move(out));
}

Value indented(Run &run, const MarkedText &text, const Arguments &a) {
  const Value *width = a.get(0, "width"), *first = a.get(1, "first");
  const MarkedText blanks =
      width && width->text() ? *width->text()
                             : MarkedText(std::string(size_t(std::clamp<int64_t>(integerOf(width, 4), 0, 1000)), ' '));
  MarkedText out;
  if (first && first->truth())
    out.append(blanks);
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.bytes().find('\n', begin), text.size());
    if (begin > 0 && end > begin)
      out.append(blanks), run.tick(int64_t(blanks.size() / 64));
    out.append(text.part(begin, std::min(end + 1, text.size())));
    if (out.size() > (size_t(64) << 20))
      fail("the template makes too large a text");
    begin = end + 1;
  }
  return run.made(std::move(out));
}

Value extreme(Run &run, const Value &value, bool largest) {
  const List all = elementsOf(run, value);
  if (all.empty())
    return Value();
  auto less = [](const Value &x, const Value &y) { return x.compare(y) < 0; };
  return largest ? *std::max_element(all.begin(), all.end(), less) : *std::min_element(all.begin(), all.end(), less);
}

Value toInteger(const Value &value, const Arguments &a) {
  if (value.isNumber())
    return Value(integerOf(&value, 0));
  int64_t i = 0;
  if (value.text() && !llvm::StringRef(value.text()->bytes()).trim().getAsInteger(10, i))
    return Value(i);
  const Value *otherwise = a.get(0, "default");
  return otherwise ? *otherwise : Value(int64_t(0));
}

Value toReal(const Value &value, const Arguments &a) {
  if (value.isNumber())
    return Value(value.number());
  double d = 0;
  if (value.text() && llvm::to_float(llvm::StringRef(value.text()->bytes()).trim(), d))
    return Value(d);
  const Value *otherwise = a.get(0, "default");
  return otherwise ? *otherwise : Value(0.0);
}

Value rounded(const Value &value, const Arguments &a) {
  const double scale = std::pow(10, double(std::clamp<int64_t>(integerOf(a.get(0, "precision"), 0), -15, 15)));
  return Value(std::nearbyint(value.number() * scale) / scale);
}

using Filter = Value (*)(Run &, const Value &, const Arguments &);

Filter filterOf(llvm::StringRef name) {
  return llvm::StringSwitch<Filter>(name)
      .Case("join", joined)
      .Case("map", mapped)
      .Case("sort", sorted)
      .Case("items", [](Run &run, const Value &v, const Arguments &) { return itemsOf(run, v); })
      .Case("dictsort", [](Run &run, const Value &v, const Arguments &) { return sorted(run, itemsOf(run, v), {}); })
      .Case("unique", [](Run &run, const Value &v, const Arguments &) { return uniqueOf(run, v); })
      .Case("list", [](Run &run, const Value &v, const Arguments &) { return run.made(elementsOf(run, v)); })
      .Case("tojson",
            [](Run &run, const Value &v, const Arguments &a) {
              const auto indent = int(std::clamp<int64_t>(integerOf(a.get(0, "indent"), -1), -1, 100));
              return run.made(MarkedText(toJson(v, indent), true));
            })
      .Cases("default", "d",
             [](Run &, const Value &v, const Arguments &a) {
               const Value *otherwise = a.get(0, "default_value"), *byTruth = a.get(1, "boolean");
               const bool has = byTruth && byTruth->truth() ? v.truth() : !v.isUndefined();
               return has ? v : otherwise ? *otherwise : own("");
             })
      .Cases("length", "count",
             [](Run &run, const Value &v, const Arguments &) {
               return Value(int64_t(v.text()   ? countCharacters(v.text()->bytes())
                                    : v.dict() ? v.dict()->items.size()
                                               : elementsOf(run, v).size()));
             })
      .Case("first",
            [](Run &run, const Value &v, const Arguments &) {
              const List all = elementsOf(run, v);
              return all.empty() ? Value() : all.front();
            })
      .Case("last",
            [](Run &run, const Value &v, const Arguments &) {
              const List all = elementsOf(run, v);
              return all.empty() ? Value() : all.back();
            })
      .Case("reverse",
            [](Run &run, const Value &v, const Arguments &) {
              List all = elementsOf(run, v);
              std::reverse(all.begin(), all.end());
              return run.made(std::move(all));
            })
      .Case("sum",
            [](Run &run, const Value &v, const Arguments &) {
              double sum = 0;
              bool isReal = false;
              for (const Value &item : elementsOf(run, v)) {
                sum += item.number();
                isReal |= item.real() != nullptr;
              }
              return isReal ? Value(sum) : Value(int64_t(sum));
            })
      .Case("min", [](Run &run, const Value &v, const Arguments &) { return extreme(run, v, false); })
      .Case("max", [](Run &run, const Value &v, const Arguments &) { return extreme(run, v, true); })
      .Case("int", [](Run &, const Value &v, const Arguments &a) { return toInteger(v, a); })
      .Case("float", [](Run &, const Value &v, const Arguments &a) { return toReal(v, a); })
      .Case("abs",
            [](Run &, const Value &v, const Arguments &) {
              return v.integer() ? Value(std::abs(*v.integer())) : Value(std::abs(v.number()));
            })
      .Case("round", [](Run &, const Value &v, const Arguments &a) { return rounded(v, a); })
      .Case("string", [](Run &run, const Value &v, const Arguments &) { return run.made(v.str()); })
      .Case("safe", [](Run &, const Value &v, const Arguments &) { return v; })
      .Case("indent", [](Run &run, const Value &v, const Arguments &a) { return indented(run, v.str(), a); })
      .Default(nullptr);
}

using Test = bool (*)(Run &, const Value &, const Arguments &);

const Value &other(const Arguments &a) {
  if (a.positional.empty())
    fail("a test without what it compares with");
  return a.positional[0];
}

Test testOf(llvm::StringRef name) {
  using V = const Value &;
  using A = const Arguments &;
  return llvm::StringSwitch<Test>(name)
      .Case("defined", [](Run &, V v, A) { return !v.isUndefined(); })
      .Case("undefined", [](Run &, V v, A) { return v.isUndefined(); })
      .Case("none", [](Run &, V v, A) { return v.isNone(); })
      .Case("string", [](Run &, V v, A) { return v.text() != nullptr; })
      .Case("mapping", [](Run &, V v, A) { return v.dict() != nullptr; })
      .Case("iterable", [](Run &, V v, A) { return v.text() || v.list() || v.dict() || v.isUndefined(); })
      .Case("sequence", [](Run &, V v, A) { return v.text() || v.list() || v.dict() || v.isUndefined(); })
      .Case("number", [](Run &, V v, A) { return v.isNumber(); })
      .Case("integer", [](Run &, V v, A) { return v.integer() != nullptr; })
      .Case("float", [](Run &, V v, A) { return v.real() != nullptr; })
      .Case("boolean", [](Run &, V v, A) { return v.boolean() != nullptr; })
      .Case("true", [](Run &, V v, A) { return v.boolean() && *v.boolean(); })
      .Case("false", [](Run &, V v, A) { return v.boolean() && !*v.boolean(); })
      .Case("callable", [](Run &, V v, A) { return v.function() != nullptr; })
      .Case("odd", [](Run &, V v, A) { return integerOf(&v, 0) % 2 != 0; })
      .Case("even", [](Run &, V v, A) { return integerOf(&v, 0) % 2 == 0; })
      .Case("divisibleby",
            [](Run &, V v, A a) {
              const int64_t by = integerOf(&other(a), 0);
              return by != 0 && integerOf(&v, 0) % by == 0;
            })
      .Cases("equalto", "eq", "sameas", [](Run &, V v, A a) { return v == other(a); })
      .Case("ne", [](Run &, V v, A a) { return !(v == other(a)); })
      .Cases("lt", "lessthan", [](Run &, V v, A a) { return v.compare(other(a)) < 0; })
      .Cases("gt", "greaterthan", [](Run &, V v, A a) { return v.compare(other(a)) > 0; })
      .Case("le", [](Run &, V v, A a) { return v.compare(other(a)) <= 0; })
      .Case("ge", [](Run &, V v, A a) { return v.compare(other(a)) >= 0; })
      .Case("in", [](Run &run, V v, A a) { return contains(run, other(a), v); })
      .Default(nullptr);
}

}  // namespace

std::string toJson(const Value &value, int indent) {
  std::string out;
  appendJson(out, value, indent, 0);
  return out;
}

bool applyFilter(Run &run, const std::string &name, const Value &value, const Arguments &arguments, Value &result) {
  if (llvm::StringRef(name).starts_with("select") || llvm::StringRef(name).starts_with("reject")) {
    const llvm::StringRef rest = llvm::StringRef(name).substr(6);
    if (!rest.empty() && rest != "attr")
      return false;
    result = picked(run, name, value, arguments);
    return true;
  }
  if (const Filter filter = filterOf(name)) {
    result = filter(run, value, arguments);
    return true;
  }
  // Filters that are methods of texts; of what is none, Jinja makes one.
  const std::string method = name == "trim" ? "strip" : name;
  const bool isMethod = llvm::StringSwitch<bool>(name)
                            .Cases("trim", "upper", "lower", "title", "capitalize", "replace", true)
                            .Default(false);
  return isMethod && callMethod(run, Value(value.str()), method, arguments, result);
}

bool applyTest(Run &run, const std::string &name, const Value &value, const Arguments &arguments, bool &result) {
  const std::string word = llvm::StringSwitch<std::string>(name)
                               .Case("==", "eq")
                               .Case("!=", "ne")
                               .Case("<", "lt")
                               .Case(">", "gt")
                               .Case("<=", "le")
                               .Case(">=", "ge")
                               .Default(name);
  const Test test = testOf(word);
  if (test)
    result = test(run, value, arguments);
  return test != nullptr;
}

}  // namespace gptc::chat
