// Values of a chat template: those of Jinja, which are Python's.
#pragma once

#include "frontends/chat/marked_text.h"
#include "support/json.h"

#include "llvm/ADT/StringMap.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gptc::chat {

class Value;
class Run;

/// What ends the rendering of a template.
struct TemplateError {
  std::string message;
};
[[noreturn]] void fail(std::string message);

using List = std::vector<Value>;

/// In the order of insertion.
struct Dict {
  std::vector<std::pair<std::string, Value>> items;
  llvm::StringMap<size_t> places;
  bool isNamespace = false;  // whose members a template may set
  bool isForeign = false;    // the names too
  const Value *find(llvm::StringRef name) const;
  void set(const std::string &name, Value value);
};

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
  /// Argument number i, or that of this name; null if there is neither.
  const Value *get(size_t i, llvm::StringRef name) const;
};

using Function = std::function<Value(Run &, const Arguments &)>;

struct Undefined {
  std::string name;  // for messages
};
struct None {};

class Value {
  template <class T> const T *pointer() const {
    const auto *p = std::get_if<std::shared_ptr<T>>(&v);
    return p ? p->get() : nullptr;
  }

public:
  Value() : v(Undefined{}) {}
  Value(Undefined u) : v(std::move(u)) {}
  Value(None) : v(None()) {}
  Value(bool b) : v(b) {}
  Value(int64_t i) : v(i) {}
  Value(double d) : v(d) {}
  Value(MarkedText t) : bytes(t.size() + unit), v(std::make_shared<const MarkedText>(std::move(t))) {}
  /// Fails for values deeper than a hundred levels, which would take all of the stack, and for those that hold more
  /// than 64 MiB, shared parts as often as they are held.
  Value(List l);
  Value(Dict d);
  Value(Function f) : v(std::make_shared<const Function>(std::move(f))) {}
  /// Its texts are foreign.
  static Value foreign(const nlohmann::ordered_json &json);

  bool isUndefined() const { return std::holds_alternative<Undefined>(v); }
  bool isNone() const { return std::holds_alternative<None>(v); }
  const bool *boolean() const { return std::get_if<bool>(&v); }
  const int64_t *integer() const { return std::get_if<int64_t>(&v); }
  const double *real() const { return std::get_if<double>(&v); }
  const MarkedText *text() const { return pointer<const MarkedText>(); }
  const List *list() const { return pointer<const List>(); }
  const Dict *dict() const { return pointer<Dict>(); }
  Dict *changeableDict() const;  // a namespace; null for all else
  /// Whether it is a namespace or holds one, so that a namespace that held it might hold itself.
  bool holdsNamespace() const { return hasNamespace; }
  const Function *function() const { return pointer<const Function>(); }

  /// About what it takes to write the value out.
  size_t size() const { return bytes; }

  bool truth() const;
  /// A number, of a bool too; null for what is none.
  bool isNumber() const { return boolean() || integer() || real(); }
  double number() const;
  /// Python's type, for messages: "str", "int", ...
  const char *typeName() const;
  /// As Python's str() has it, and repr().
  MarkedText str() const;
  std::string repr() const;
  bool operator==(const Value &other) const;
  /// Negative, 0 or positive. Fails for types that have no order.
  int compare(const Value &other) const;

private:
  static constexpr size_t unit = 16;
  size_t bytes = unit;
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const MarkedText>, std::shared_ptr<const List>,
               std::shared_ptr<Dict>, std::shared_ptr<const Function>>
      v;
  int levels = 0;  // of lists and dicts
  bool hasNamespace = false;

  void holds(const Value &item);
};

inline Value own(std::string_view text) { return Value(MarkedText(std::string(text))); }

}  // namespace gptc::chat
