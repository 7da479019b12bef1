// The printer. graph.h has the grammar; parser.cpp reads the text back.
#include "ir/graph.h"

#include "llvm/ADT/StringSet.h"

#include <bit>
#include <charconv>
#include <cmath>

namespace gptc {

namespace {

bool isNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '$';
}
bool isDigit(char c) { return c >= '0' && c <= '9'; }

void printString(std::string &out, llvm::StringRef s) {
  static constexpr char hex[] = "0123456789abcdef";
  out += '"';
  for (char c : s) {
    auto u = uint8_t(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (u < 0x20 || u == 0x7f) {
      out += "\\x";
      out += hex[u >> 4];
      out += hex[u & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

/// Prints a name, quoted if it is empty or has characters other than those of bare names.
void printName(std::string &out, llvm::StringRef name) {
  if (!name.empty() && llvm::all_of(name, isNameChar))
    out += name;
  else
    printString(out, name);
}

template <typename T> void printNumber(std::string &out, T v, int base = 10) {
  char buffer[64];
  char *end;
  if constexpr (std::is_integral_v<T>)
    end = std::to_chars(buffer, buffer + sizeof buffer, v, base).ptr;
  else
    end = std::to_chars(buffer, buffer + sizeof buffer, v).ptr;
  out.append(buffer, end);
}

void printDouble(std::string &out, double v) {
  if (std::isnan(v)) {
    auto bits = std::bit_cast<uint64_t>(v);
    out += "nan";
    if (bits != 0x7ff8000000000000u) {
      out += "(0x";
      printNumber(out, bits, 16);
      out += ')';
    }
    return;
  }
  if (std::isinf(v)) {
    out += v < 0 ? "-inf" : "inf";
    return;
  }
  size_t start = out.size();
  printNumber(out, v);  // the shortest text that reads back as v
  if (llvm::StringRef(out).substr(start).find_first_of(".e") == llvm::StringRef::npos)
    out += ".0";
}

struct PrintAttr {
  std::string &out;
  void operator()(bool v) { out += v ? "true" : "false"; }
  void operator()(int64_t v) { printNumber(out, v); }
  void operator()(double v) { printDouble(out, v); }
  void operator()(const std::string &v) { printString(out, v); }
  void operator()(const std::vector<int64_t> &v) {
    out += '[';
    for (size_t i = 0; i < v.size(); ++i) {
      if (i)
        out += ", ";
      printNumber(out, v[i]);
    }
    out += ']';
  }
};

void printAttrs(std::string &out, const AttrMap &attrs) {
  if (attrs.empty())
    return;
  out += " {";
  bool first = true;
  for (const auto &[name, value] : attrs) {
    if (!first)
      out += ", ";
    first = false;
    printName(out, name);
    out += '=';
    std::visit(PrintAttr{out}, value);
  }
  out += '}';
}

/// Names of the values of one block. A hint that is taken, or that starts with a digit, is changed.
class Names {
public:
  explicit Names(const Block &b) {
    for (const auto &a : b.args)
      add(*a);
    for (const Op &op : b)
      for (unsigned i = 0; i < op.numResults(); ++i)
        add(*op.result(i));
  }
  void print(std::string &out, const Value *v) const {
    auto it = names.find(v);
    out += it == names.end() ? "%<not visible here>" : it->second;
  }

private:
  void add(const Value &v) {
    std::string &name = names[&v];
    name = "%";
    if (v.name.empty()) {
      printNumber(name, next++);
      return;
    }
    if (isDigit(v.name[0]))
      name += '_';
    for (char c : v.name)
      name += isNameChar(c) ? c : '_';
    for (size_t length = name.size(), n = 1; !taken.insert(name).second; ++n) {
      name.resize(length);
      name += '_';
      printNumber(name, n);
    }
  }
  llvm::DenseMap<const Value *, std::string> names;
  llvm::StringSet<> taken;
  unsigned next = 0;
};

class Printer {
public:
  std::string out;

  void module(const Module &m) {
    out += "module";
    printAttrs(out, m.attrs);
    out += " {\n";
    for (const auto &s : m.states)
      state(*s, "  ");
    for (const auto &f : m.functions)
      function(*f, "  ");
    out += "}\n";
  }

  void function(const Function &f, const std::string &indent) {
    Names names(f.body);
    out += indent + "func @";
    printName(out, f.name);
    args(f.body, names);
    out += " -> (";
    bool first = true;
    for (const Type &t : f.results()) {
      out += first ? "" : ", ";
      first = false;
      out += t.str();
    }
    out += ')';
    printAttrs(out, f.attrs);
    out += " {\n";
    for (const Op &o : f.body)
      op(o, names, indent + "  ");
    out += indent + "}\n";
  }

  void op(const Op &o, const Names &names, const std::string &indent) {
    out += indent;
    for (unsigned i = 0; i < o.numResults(); ++i) {
      out += i ? ", " : "";
      names.print(out, o.result(i));
    }
    out += o.numResults() ? " = " : "";
    out += o.name();
    const char *separator = " ";
    if (!o.state.empty()) {
      out += " @";
      printName(out, o.state);
      separator = ", ";
    }
    for (const Value *v : o.operands()) {
      out += separator;
      separator = ", ";
      names.print(out, v);
    }
    printAttrs(out, o.attrs);
    for (unsigned i = 0; i < o.numResults(); ++i) {
      out += i ? ", " : " : ";
      out += o.result(i)->type.str();
    }
    if (o.layer >= 0) {
      out += " layer=";
      printNumber(out, o.layer);
    }
    if (!o.loc.empty()) {
      out += " loc(";
      printString(out, o.loc);
      out += ')';
    }
    if (o.body) {
      Names inner(*o.body);
      out += " {\n" + indent + "  ^";
      args(*o.body, inner);
      out += '\n';
      for (const Op &b : *o.body)
        op(b, inner, indent + "  ");
      out += indent + "}";
    }
    out += '\n';
  }

private:
  void state(const State &s, const char *indent) {
    out += indent;
    out += "state @";
    printName(out, s.name);
    out += " : " + s.type.str();
    printAttrs(out, s.attrs);
    out += '\n';
  }

  void args(const Block &b, const Names &names) {
    out += '(';
    for (size_t i = 0; i < b.args.size(); ++i) {
      out += i ? ", " : "";
      names.print(out, b.args[i].get());
      out += ": " + b.args[i]->type.str();
    }
    out += ')';
  }
};

}  // namespace

std::string textOf(const Attr &a) {
  std::string out;
  std::visit(PrintAttr{out}, a);
  return out;
}

std::string print(const Module &m) {
  Printer p;
  p.module(m);
  return std::move(p.out);
}

std::string print(const Function &f) {
  Printer p;
  p.function(f, "");
  return std::move(p.out);
}

std::string print(const Op &op) {
  Printer p;
  p.op(op, Names(*op.parent()), "");
  return std::move(p.out);
}

}  // namespace gptc
