// The parser of the grammar in graph.h. The input is untrusted: the parser bounds depth and sizes, checks every number,
// and rejects everything unknown with file, line and column.
#include "ir/graph.h"
#include "support/diagnostics.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"

#include <bit>
#include <charconv>
#include <limits>

namespace gptc {

namespace {

constexpr unsigned maxDepth = 8;  // of nested bodies; valid modules need 1

bool isDigit(char c) { return c >= '0' && c <= '9'; }
bool isWordStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool isNameChar(char c) { return isWordStart(c) || isDigit(c) || c == '.' || c == '$'; }

class Parser {
public:
  Parser(llvm::StringRef text, llvm::StringRef filename) : whole(text), rest(text), filename(filename) {}

  std::unique_ptr<Module> run() {
    bool wrapped = acceptWord("module");
    if (wrapped) {
      skip();
      if (attrsFollow())
        module->attrs = parseAttrs();
      expect('{');
    }
    while (!(wrapped ? accept('}') : atEnd())) {
      if (acceptWord("state"))
        parseState();
      else if (acceptWord("func"))
        parseFunction();
      else
        fail(wrapped ? "expected 'state', 'func' or '}'" : "expected 'module', 'state' or 'func'");
    }
    if (!atEnd())
      fail("expected the end of the text after the module");
    return std::move(module);
  }

private:
  llvm::StringRef whole;
  llvm::StringRef rest;
  llvm::StringRef filename;
  std::unique_ptr<Module> module = std::make_unique<Module>();
  llvm::StringSet<> stateNames, functionNames;

  using Scope = llvm::StringMap<Value *>;

  // ---- errors -------------------------------------------------------------------------------------------------------

  [[noreturn]] void failAt(llvm::StringRef place, std::string message, std::string help = "") {
    size_t offset = place.data() - whole.data();
    size_t start =
        whole.rfind('\n', offset) == llvm::StringRef::npos || offset == 0 ? 0 : whole.rfind('\n', offset) + 1;
    Diagnostic d{ErrorCode::GirSyntax, std::move(message), {}, "", {}, {}};
    d.where.file = filename.str();
    d.where.line = unsigned(1 + whole.take_front(start).count('\n'));
    d.where.column = unsigned(offset - start + 1);
    d.where.length = unsigned(std::max<size_t>(1, std::min<size_t>(place.size(), 80)));
    d.where.sourceLine = whole.drop_front(start).take_until([](char c) { return c == '\n'; }).rtrim('\r').str();
    if (!help.empty())
      d.help.push_back(std::move(help));
    throw UserError(std::move(d));
  }

  /// Fails at the next token.
  [[noreturn]] void fail(std::string message) {
    skip();
    llvm::StringRef word = rest.take_while(isNameChar);
    failAt(word.empty() ? rest.take_front(0) : word, std::move(message));
  }

  // ---- tokens -------------------------------------------------------------------------------------------------------

  /// Skips blanks and comments.
  void skip() {
    for (;;) {
      rest = rest.ltrim(" \t\r\n");
      if (!rest.starts_with("//"))
        return;
      rest = rest.drop_until([](char c) { return c == '\n'; });
    }
  }
  bool atEnd() {
    skip();
    return rest.empty();
  }
  bool peek(char c) {
    skip();
    return !rest.empty() && rest.front() == c;
  }
  bool accept(char c) {
    if (!peek(c))
      return false;
    rest = rest.drop_front();
    return true;
  }
  void expect(char c) {
    if (!accept(c))
      fail(fmt::format("expected '{}'", c));
  }
  llvm::StringRef peekWord() {
    skip();
    if (rest.empty() || !isWordStart(rest.front()))
      return {};
    return rest.take_while([](char c) { return isWordStart(c) || isDigit(c); });
  }
  bool acceptWord(llvm::StringRef word) {
    if (peekWord() != word)
      return false;
    rest = rest.drop_front(word.size());
    return true;
  }
  void expectWord(llvm::StringRef word) {
    if (!acceptWord(word))
      fail(fmt::format("expected '{}'", word.str()));
  }

  std::string parseString() {
    skip();
    llvm::StringRef start = rest;
    expect('"');
    std::string s;
    for (;;) {
      if (rest.empty() || rest.front() == '\n')
        failAt(start.take_front(1), "this string does not end on its line");
      char c = rest.front();
      rest = rest.drop_front();
      if (c == '"')
        return s;
      s += c == '\\' ? parseEscape() : c;
    }
  }
  char parseEscape() {
    llvm::StringRef place = rest;
    char c = rest.empty() ? 0 : rest.front();
    rest = rest.drop_front(rest.empty() ? 0 : 1);
    switch (c) {
    case '"':
    case '\\':
      return c;
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'x': {
      unsigned value;
      if (rest.size() < 2 || rest.take_front(2).getAsInteger(16, value))
        break;
      rest = rest.drop_front(2);
      return char(value);
    }
    default:
      break;
    }
    failAt(place.take_front(1), "unknown escape in a string", "\\\" \\\\ \\n \\t and \\xHH are known");
  }

  /// A name after '@', '%' or as a key: bare or quoted.
  std::string parseName() {
    if (!rest.empty() && rest.front() == '"')
      return parseString();
    llvm::StringRef name = rest.take_while(isNameChar);
    if (name.empty())
      fail("expected a name");
    rest = rest.drop_front(name.size());
    return name.str();
  }

  int64_t parseInt(int64_t least, int64_t most) {
    skip();
    llvm::StringRef digits = rest.take_front(rest.starts_with("-") ? 1 : 0);
    digits = rest.take_front(digits.size() + rest.drop_front(digits.size()).take_while(isDigit).size());
    int64_t v;
    if (digits.empty() || digits == "-")
      fail("expected an integer");
    if (digits.getAsInteger(10, v) || v < least || v > most)
      failAt(digits, fmt::format("integer out of range ({} to {})", least, most));
    rest = rest.drop_front(digits.size());
    return v;
  }

  Type parseOneType() {
    skip();
    llvm::StringRef before = rest;
    std::string error;
    std::optional<Type> t = parseType(rest, error);
    if (t)
      return std::move(*t);
    if (error.empty())
      fail("expected a type such as f32[8,1024]");
    failAt(before.take_while([](char c) { return c != ']' && c != ' ' && c != '\n'; }), error);
  }

  // ---- attributes ---------------------------------------------------------------------------------------------------

  /// Whether attributes follow (`{` key `=`) and not a body.
  bool attrsFollow() {
    if (!peek('{'))
      return false;
    llvm::StringRef saved = rest;
    accept('{');
    skip();
    bool follow = false;
    if (!rest.empty() && (rest.front() == '"' || isWordStart(rest.front()))) {
      if (rest.front() == '"')
        follow = true;  // a body cannot start with a string
      else {
        rest = rest.drop_while(isNameChar);
        follow = peek('=');
      }
    }
    rest = saved;
    return follow;
  }

  AttrMap parseAttrs() {
    AttrMap attrs;
    expect('{');
    do {
      skip();
      llvm::StringRef place = rest.take_while(isNameChar);
      if (!peek('"') && place.empty())
        fail("expected the name of an attribute");
      std::string key = parseName();
      if (attrs.has(key))
        failAt(place, fmt::format("attribute '{}' is given twice", key));
      expect('=');
      attrs.set(key, parseAttr());
    } while (accept(','));
    expect('}');
    return attrs;
  }

  Attr parseAttr() {
    skip();
    if (peek('"'))
      return parseString();
    if (accept('[')) {
      std::vector<int64_t> list;
      if (accept(']'))
        return list;
      do
        list.push_back(parseInt(INT64_MIN, INT64_MAX));
      while (accept(','));
      expect(']');
      return list;
    }
    if (acceptWord("true"))
      return true;
    if (acceptWord("false"))
      return false;
    return parseNumber();
  }

  Attr parseNumber() {
    if (acceptWord("inf"))
      return std::numeric_limits<double>::infinity();
    if (acceptWord("nan"))
      return parseNanBits();
    llvm::StringRef place = rest;
    llvm::StringRef digits = rest.drop_front(rest.starts_with("-") ? 1 : 0);
    if (digits.starts_with("inf")) {
      rest = digits.drop_front(3);
      return -std::numeric_limits<double>::infinity();
    }
    llvm::StringRef number =
        rest.take_while([](char c) { return isDigit(c) || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'; });
    if (digits.empty() || !isDigit(digits.front()))
      fail("expected true, false, a number, a string or a list of integers");
    if (number.find_first_of(".eE") == llvm::StringRef::npos)
      return parseInt(INT64_MIN, INT64_MAX);
    double v;
    auto [end, status] = std::from_chars(number.begin(), number.end(), v);
    if (status == std::errc::result_out_of_range)
      failAt(number, "number out of range of a double");
    if (status != std::errc() || end != number.end())
      failAt(number, "malformed number");
    rest = place.drop_front(number.size());
    return v;
  }

  Attr parseNanBits() {
    uint64_t bits = 0x7ff8000000000000u;
    if (rest.consume_front("(0x")) {
      llvm::StringRef digits = rest.take_while([](char c) { return isDigit(c) || (c >= 'a' && c <= 'f'); });
      if (digits.getAsInteger(16, bits) || !std::isnan(std::bit_cast<double>(bits)))
        failAt(digits, "these are not the bits of a nan");
      rest = rest.drop_front(digits.size());
      expect(')');
    }
    return std::bit_cast<double>(bits);
  }

  // ---- module items -------------------------------------------------------------------------------------------------

  std::string parseSymbol(llvm::StringSet<> &taken, const char *what) {
    expect('@');
    llvm::StringRef place = rest.take_while(isNameChar);
    std::string name = parseName();
    if (name.empty())
      failAt(place, fmt::format("a {} needs a name", what));
    if (!taken.insert(name).second)
      failAt(place, fmt::format("two {}s are called '{}'", what, name));
    return name;
  }

  void parseState() {
    auto s = std::make_unique<State>();
    s->name = parseSymbol(stateNames, "state");
    expect(':');
    s->type = parseOneType();
    if (peek('{'))
      s->attrs = parseAttrs();
    module->states.push_back(std::move(s));
  }

  void parseFunction() {
    auto owned = std::make_unique<Function>();
    Function &f = *owned;
    f.module = module.get();
    f.name = parseSymbol(functionNames, "function");
    module->functions.push_back(std::move(owned));
    Scope scope;
    parseArgs(f.body, scope);
    skip();
    llvm::StringRef arrow = rest.take_front(2);
    bool typed = rest.consume_front("->");
    std::vector<Type> results;
    if (typed) {
      expect('(');
      if (!accept(')')) {
        results = parseTypes();
        expect(')');
      }
    }
    if (attrsFollow())
      f.attrs = parseAttrs();
    expect('{');
    while (!accept('}'))
      parseOp(f.body, scope, 0);
    if (typed && results != f.results())
      failAt(arrow, fmt::format("@{} returns other types than it declares", f.name));
  }

  std::vector<Type> parseTypes() {
    std::vector<Type> types;
    do
      types.push_back(parseOneType());
    while (accept(','));
    return types;
  }

  void parseArgs(Block &block, Scope &scope) {
    expect('(');
    if (accept(')'))
      return;
    do {
      auto [name, place] = parseValueName();
      expect(':');
      define(scope, name, place, block.addArg(parseOneType()));
    } while (accept(','));
    expect(')');
  }

  // ---- ops ----------------------------------------------------------------------------------------------------------

  struct Named {
    std::string name;
    llvm::StringRef place;
  };
  Named parseValueName() {
    skip();
    llvm::StringRef before = rest;
    expect('%');
    llvm::StringRef name = rest.take_while(isNameChar);
    if (name.empty())
      fail("expected the name of a value after '%'");
    rest = rest.drop_front(name.size());
    return {name.str(), before.take_front(1 + name.size())};
  }

  void define(Scope &scope, const std::string &name, llvm::StringRef place, Value *v) {
    if (!scope.insert({name, v}).second)
      failAt(place, fmt::format("%{} is defined twice", name));
    if (!isDigit(name[0]))
      v->name = name;
  }

  Value *parseUse(const Scope &scope) {
    auto [name, place] = parseValueName();
    auto it = scope.find(name);
    if (it == scope.end())
      failAt(place, fmt::format("%{} is not defined before this use", name));
    return it->second;
  }

  OpKind parseKind() {
    llvm::StringRef word = peekWord();
    if (word.empty())
      fail("expected the name of an op");
    std::optional<OpKind> kind = parseOpKind(word);
    if (!kind) {
      const std::optional<OpKind> near = nearestOpKind(word.take_front(80));
      failAt(word, fmt::format("unknown op '{}'", word.take_front(80).str()),
             near ? fmt::format("did you mean '{}'?", nameOf(*near).str()) : "");
    }
    rest = rest.drop_front(word.size());
    return *kind;
  }

  void parseOp(Block &block, Scope &scope, unsigned depth) {
    std::vector<Named> results;
    if (peek('%')) {
      do
        results.push_back(parseValueName());
      while (accept(','));
      expect('=');
    }
    skip();
    llvm::StringRef place = peekWord();
    Op *op = block.insert(parseKind());
    // An operand must be on the line of its op: a '%' on the next line begins the next op.
    bool more = rest.ltrim(" \t").starts_with("%");
    if (accept('@')) {
      op->state = parseName();
      more = accept(',');
    }
    if (more)
      do
        op->addOperand(parseUse(scope));
      while (accept(','));
    if (peek('{') && !rest.drop_front().ltrim(" \t\r\n").starts_with("^"))
      op->attrs = parseAttrs();
    std::vector<Type> types;
    if (accept(':'))
      types = parseTypes();
    if (types.size() != results.size())
      failAt(place, fmt::format("{} results and {} types", results.size(), types.size()));
    if (acceptWord("layer")) {
      expect('=');
      op->layer = int(parseInt(0, INT32_MAX));
    }
    if (acceptWord("loc")) {
      expect('(');
      op->loc = parseString();
      expect(')');
    }
    if (peek('{'))
      parseBody(*op, depth + 1);
    for (size_t i = 0; i < results.size(); ++i)
      define(scope, results[i].name, results[i].place, op->addResult(std::move(types[i])));
  }

  void parseBody(Op &op, unsigned depth) {
    if (depth > maxDepth)
      fail(fmt::format("bodies nested more than {} deep", maxDepth));
    op.body = std::make_unique<Block>();
    Scope scope;
    expect('{');
    expect('^');
    parseArgs(*op.body, scope);
    while (!accept('}'))
      parseOp(*op.body, scope, depth);
  }
};

}  // namespace

std::unique_ptr<Module> parseModule(llvm::StringRef text, llvm::StringRef filename) {
  return Parser(text, filename).run();
}

}  // namespace gptc
