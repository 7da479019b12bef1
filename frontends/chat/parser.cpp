#include "frontends/chat/lexer.h"
#include "frontends/chat/syntax.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <fmt/format.h>
#include <initializer_list>

namespace gptc::chat {
namespace {

constexpr int mostDepth = 100, mostHeight = 500;

class Parser {
public:
  explicit Parser(const std::string &source) : tokens(lexTemplate(source)) {}

  Block run() {
    Block all = block({});
    if (peek().kind != Token::end)
      wrong(fmt::format("{} without its beginning", peek(1).content));
    return all;
  }

private:
  [[noreturn]] void wrong(const std::string &what) const { fail(fmt::format("line {}: {}", peek().line, what)); }

  const Token &peek(size_t ahead = 0) const { return tokens[std::min(at + ahead, tokens.size() - 1)]; }
  Token take() { return tokens[std::min(at++, tokens.size() - 1)]; }
  bool isSymbol(llvm::StringRef s, size_t ahead = 0) const {
    return peek(ahead).kind == Token::symbol && peek(ahead).content == s;
  }
  bool isName(llvm::StringRef s, size_t ahead = 0) const {
    return peek(ahead).kind == Token::name && peek(ahead).content == s;
  }
  bool takeSymbol(llvm::StringRef s) { return isSymbol(s) && ++at; }
  bool takeName(llvm::StringRef s) { return isName(s) && ++at; }
  void expectSymbol(llvm::StringRef s) {
    if (!takeSymbol(s))
      wrong(fmt::format("expected {}, and there is {}", s.str(), shown(peek())));
  }
  /// What stands up to `close`, with commas between, and perhaps behind the last.
  template <class Element> void elements(const char *close, Element element) {
    for (bool isFirst = true; !takeSymbol(close); isFirst = false) {
      if (!isFirst)
        expectSymbol(",");
      if (takeSymbol(close))
        return;
      element();
    }
  }
  void expectEndOfTag() {
    if (peek().kind != Token::endTag)
      wrong(fmt::format("expected the end of the tag, and there is {}", shown(peek())));
    ++at;
  }
  std::string expectName() {
    if (peek().kind != Token::name)
      wrong(fmt::format("expected a name, and there is {}", shown(peek())));
    return take().content;
  }
  static std::string shown(const Token &t) {
    switch (t.kind) {
    case Token::end:
      return "the end of the template";
    case Token::endTag:
      return "%}";
    case Token::endOutput:
      return "}}";
    case Token::string:
      return "a string";
    default:
      return t.content.empty() ? "a tag" : t.content;
    }
  }

  /// Counts how deep the parser is in itself.
  struct Deeper {
    explicit Deeper(Parser &p) : p(p) {
      if (++p.depth > mostDepth)
        p.wrong("nested too deeply");
    }
    ~Deeper() { --p.depth; }
    Parser &p;
  };

  // ---- statements ----

  /// Up to a tag that begins with one of these words, which is not taken.
  Block block(std::initializer_list<llvm::StringRef> ends) {
    const Deeper deeper(*this);
    Block out;
    for (;;) {
      if (peek().kind == Token::end)
        return out;
      if (peek().kind == Token::text) {
        auto s = make(Statement::text);
        s->content = take().content;
        out.push_back(std::move(s));
      } else if (peek().kind == Token::beginOutput) {
        auto s = make(Statement::output);
        ++at;
        s->expr = tuple();
        if (peek().kind != Token::endOutput)
          wrong(fmt::format("expected }}}}, and there is {}", shown(peek())));
        ++at;
        out.push_back(std::move(s));
      } else {
        const llvm::StringRef word = peek(1).kind == Token::name ? llvm::StringRef(peek(1).content) : "";
        if (std::find(ends.begin(), ends.end(), word) != ends.end() || word.starts_with("end") || word == "else" ||
            word == "elif")
          return out;
        ++at;
        out.push_back(tag());
      }
    }
  }

  std::unique_ptr<Statement> make(Statement::Kind kind) const {
    auto s = std::make_unique<Statement>();
    s->kind = kind;
    s->line = peek().line;
    return s;
  }

  /// The end of a statement: {% word %}.
  void expectEnd(llvm::StringRef word) {
    if (peek().kind != Token::beginTag || !isName(word, 1))
      wrong(fmt::format("expected {}, and there is {}", word.str(),
                        shown(peek().kind == Token::beginTag ? peek(1) : peek())));
    at += 2;
    if (word == "endmacro" && peek().kind == Token::name)
      ++at;
    expectEndOfTag();
  }

  std::unique_ptr<Statement> tag() {
    const std::string word = expectName();
    if (word == "for")
      return forLoop();
    if (word == "if")
      return branch();
    if (word == "set")
      return set();
    if (word == "macro")
      return macro();
    if (word == "break" || word == "continue") {
      auto s = make(word == "break" ? Statement::breakLoop : Statement::continueLoop);
      if (!loops)
        wrong(word + " outside of a loop");
      expectEndOfTag();
      return s;
    }
    if (word == "generation") {  // what a model wrote, for training
      auto s = make(Statement::group);
      expectEndOfTag();
      s->body = block({});
      expectEnd("endgeneration");
      return s;
    }
    wrong(fmt::format("{} is not known here", word));
  }

  std::unique_ptr<Statement> forLoop() {
    auto s = make(Statement::forLoop);
    s->targets = targets();
    if (!takeName("in"))
      wrong("a loop without in");
    s->expr = tuple(false);
    if (takeName("if"))
      s->condition = condition();
    if (isName("recursive"))
      wrong("recursive loops are not known here");
    expectEndOfTag();
    ++loops;
    s->body = block({});
    --loops;
    if (isElse())
      s->otherwise = block({});
    expectEnd("endfor");
    return s;
  }

  bool isElse() {
    if (peek().kind != Token::beginTag || !isName("else", 1))
      return false;
    at += 2;
    expectEndOfTag();
    return true;
  }

  std::unique_ptr<Statement> branch() {
    auto s = make(Statement::branch);
    s->expr = tuple();
    expectEndOfTag();
    s->body = block({});
    if (peek().kind == Token::beginTag && isName("elif", 1)) {
      at += 2;
      const Deeper deeper(*this);
      s->otherwise.push_back(branch());  // takes endif too
      return s;
    }
    if (isElse())
      s->otherwise = block({});
    expectEnd("endif");
    return s;
  }

  std::unique_ptr<Statement> set() {
    auto s = make(Statement::set);
    s->targets = targets();
    if (s->targets.size() == 1 && takeSymbol("."))
      s->member = expectName();
    if (takeSymbol("=")) {
      s->expr = tuple();
      expectEndOfTag();
      return s;
    }
    if (isSymbol("|"))
      wrong("set with a filter is not known here");
    expectEndOfTag();
    s->body = block({});
    expectEnd("endset");
    return s;
  }

  std::unique_ptr<Statement> macro() {
    auto s = make(Statement::macro);
    s->content = expectName();
    expectSymbol("(");
    elements(")", [&] {
      s->targets.push_back(expectName());
      s->defaults.push_back(takeSymbol("=") ? condition() : nullptr);
    });
    expectEndOfTag();
    const int outer = std::exchange(loops, 0);
    s->body = block({});
    loops = outer;
    expectEnd("endmacro");
    return s;
  }

  std::vector<std::string> targets() {
    const bool inBrackets = takeSymbol("(");
    std::vector<std::string> names = {expectName()};
    while (takeSymbol(","))
      names.push_back(expectName());
    if (inBrackets)
      expectSymbol(")");
    return names;
  }

  // ---- expressions ----

  ExprPtr node(Expr::Kind kind, std::string text = "") const {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->line = peek().line;
    e->text = std::move(text);
    return e;
  }
  /// A node whose children are complete.
  ExprPtr grown(ExprPtr e) const {
    for (const ExprPtr &child : e->children)
      e->height = std::max(e->height, child ? child->height + 1 : 0);
    for (const auto &[name, child] : e->named)
      e->height = std::max(e->height, child->height + 1);
    if (e->height > mostHeight)
      wrong("too long an expression");
    return e;
  }
  ExprPtr over(ExprPtr e, ExprPtr a, ExprPtr b = nullptr) const {
    e->children.push_back(std::move(a));
    if (b)
      e->children.push_back(std::move(b));
    return grown(std::move(e));
  }

  /// An expression, or several with commas between, which are a list.
  ExprPtr tuple(bool withCondition = true) {
    ExprPtr first = withCondition ? condition() : either();
    if (!isSymbol(","))
      return first;
    ExprPtr e = over(node(Expr::list), std::move(first));
    while (takeSymbol(",") && peek().kind != Token::endTag && peek().kind != Token::endOutput && !isSymbol(")"))
      e->children.push_back(withCondition ? condition() : either());
    return grown(std::move(e));
  }

  ExprPtr condition() {
    const Deeper deeper(*this);
    ExprPtr e = either();
    while (takeName("if")) {
      ExprPtr test = either();
      ExprPtr otherwise = takeName("else") ? condition() : nullptr;
      ExprPtr all = node(Expr::condition);
      all->children.push_back(std::move(e));
      all->children.push_back(std::move(test));
      all->children.push_back(std::move(otherwise));
      e = grown(std::move(all));
    }
    return e;
  }

  ExprPtr either() {
    return words("or", [&] { return both(); });
  }
  ExprPtr both() {
    return words("and", [&] { return negation(); });
  }
  /// Operands with this word between them, from the left.
  template <class Operand> ExprPtr words(const char *word, Operand operand) {
    ExprPtr e = operand();
    while (takeName(word)) {
      ExprPtr all = node(Expr::binary, word);
      e = over(std::move(all), std::move(e), operand());
    }
    return e;
  }
  ExprPtr negation() {
    if (!isName("not"))
      return comparison();
    const Deeper deeper(*this);
    ExprPtr e = node(Expr::unary, "not");
    ++at;
    return over(std::move(e), negation());
  }

  ExprPtr comparison() {
    ExprPtr e = sum();
    ExprPtr all;
    for (;;) {
      std::string op;
      for (const char *symbol : {"==", "!=", "<=", ">=", "<", ">"})
        if (op.empty() && isSymbol(symbol))
          op = symbol;
      size_t length = 1;
      if (isName("in"))
        op = "in";
      else if (isName("not") && isName("in", 1))
        op = "not in", length = 2;
      if (op.empty())
        return all ? grown(std::move(all)) : std::move(e);
      if (!all)
        all = over(node(Expr::comparison), std::move(e));
      at += length;
      all->operators.push_back(op);
      all->children.push_back(sum());
    }
  }

  /// Operators of one precedence, from the left.
  template <class Operand> ExprPtr chain(std::initializer_list<const char *> symbols, Operand operand) {
    ExprPtr e = operand();
    for (;;) {
      const char *found = nullptr;
      for (const char *symbol : symbols)
        if (isSymbol(symbol))
          found = symbol;
      if (!found)
        return e;
      ExprPtr all = node(Expr::binary, found);
      ++at;
      e = over(std::move(all), std::move(e), operand());
    }
  }
  ExprPtr sum() {
    return chain({"+", "-"}, [&] { return concatenation(); });
  }
  ExprPtr concatenation() {
    return chain({"~"}, [&] { return product(); });
  }
  ExprPtr product() {
    return chain({"*", "/", "//", "%"}, [&] { return power(); });
  }
  ExprPtr power() {
    return chain({"**"}, [&] { return unary(true); });
  }

  ExprPtr unary(bool withFilter) {
    ExprPtr e;
    if (isSymbol("-") || isSymbol("+")) {
      const Deeper deeper(*this);
      e = node(Expr::unary, peek().content);
      ++at;
      e = over(std::move(e), unary(false));
    } else {
      e = primary();
    }
    e = postfix(std::move(e));
    return withFilter ? filters(std::move(e)) : std::move(e);
  }

  ExprPtr primary() {
    const Deeper deeper(*this);
    ExprPtr e = node(Expr::literal);
    switch (peek().kind) {
    case Token::string: {
      std::string text;
      while (peek().kind == Token::string)
        text += take().content;
      e->value = own(text);
      return e;
    }
    case Token::integer: {
      int64_t number = 0;
      if (llvm::StringRef(peek().content).getAsInteger(10, number))
        wrong("a number beyond 64 bits");
      ++at;
      e->value = Value(number);
      return e;
    }
    case Token::real:
      e->value = Value(std::strtod(take().content.c_str(), nullptr));
      return e;
    case Token::name:
      return nameOrConstant();
    default:
      break;
    }
    if (takeSymbol("("))
      return inBrackets();
    if (takeSymbol("[")) {
      e->kind = Expr::list;
      elements("]", [&] { e->children.push_back(condition()); });
      return grown(std::move(e));
    }
    if (takeSymbol("{")) {
      e->kind = Expr::dict;
      elements("}", [&] {
        e->children.push_back(condition());
        expectSymbol(":");
        e->children.push_back(condition());
      });
      return grown(std::move(e));
    }
    wrong(fmt::format("expected an expression, and there is {}", shown(peek())));
  }

  ExprPtr nameOrConstant() {
    ExprPtr e = node(Expr::literal);
    const std::string word = take().content;
    if (word == "true" || word == "True")
      e->value = Value(true);
    else if (word == "false" || word == "False")
      e->value = Value(false);
    else if (word == "none" || word == "None")
      e->value = Value(None());
    else
      e->kind = Expr::name, e->text = word;
    return e;
  }

  ExprPtr inBrackets() {
    if (takeSymbol(")"))
      return node(Expr::list);
    ExprPtr e = tuple();
    expectSymbol(")");
    return e;
  }

  ExprPtr postfix(ExprPtr e) {
    for (;;)
      if (isSymbol(".")) {
        ++at;
        ExprPtr all = node(Expr::member);
        if (peek().kind == Token::integer) {
          all->kind = Expr::item;
          ExprPtr index = node(Expr::literal);
          index->value = Value(int64_t(std::strtoll(take().content.c_str(), nullptr, 10)));
          e = over(std::move(all), std::move(e), std::move(index));
        } else {
          all->text = expectName();
          e = over(std::move(all), std::move(e));
        }
      } else if (isSymbol("[")) {
        e = subscript(std::move(e));
      } else if (isSymbol("(")) {
        ExprPtr all = over(node(Expr::call), std::move(e));
        arguments(*all);
        e = grown(std::move(all));
      } else {
        return e;
      }
  }

  ExprPtr subscript(ExprPtr e) {
    ExprPtr all = over(node(Expr::item), std::move(e));
    expectSymbol("[");
    ExprPtr parts[3];
    size_t i = 0;
    for (; !isSymbol("]") && i < 3; ++i) {
      if (!isSymbol(":"))
        parts[i] = tuple();
      if (!takeSymbol(":"))
        break;
      all->kind = Expr::slice;
    }
    expectSymbol("]");
    if (all->kind == Expr::item && !parts[0])
      wrong("an empty index");
    for (ExprPtr &part : parts)
      if (all->kind == Expr::slice || part)
        all->children.push_back(std::move(part));
    return grown(std::move(all));
  }

  void arguments(Expr &call) {
    expectSymbol("(");
    elements(")", [&] {
      if (isSymbol("*") || isSymbol("**"))
        wrong("* before an argument is not known here");
      if (peek().kind == Token::name && isSymbol("=", 1)) {
        std::string name = expectName();
        ++at;
        call.named.emplace_back(std::move(name), condition());
      } else {
        call.children.push_back(condition());
      }
    });
  }

  ExprPtr filters(ExprPtr e) {
    for (;;)
      if (isSymbol("|")) {
        ++at;
        ExprPtr all = over(node(Expr::filter), std::move(e));
        all->text = expectName();
        if (isSymbol("("))
          arguments(*all);
        e = grown(std::move(all));
      } else if (isName("is")) {
        ++at;
        ExprPtr all = over(node(takeName("not") ? Expr::notTest : Expr::test), std::move(e));
        all->text = expectName();
        const Token::Kind next = peek().kind;
        const bool isWord = isName("else") || isName("or") || isName("and") || isName("if") || isName("is") ||
                            isName("in") || isName("not");
        if (isSymbol("("))
          arguments(*all);
        else if ((next == Token::name && !isWord) || next == Token::string || next == Token::integer ||
                 next == Token::real || isSymbol("[") || isSymbol("{"))
          all->children.push_back(postfix(primary()));
        e = grown(std::move(all));
      } else if (isSymbol("(")) {
        ExprPtr all = over(node(Expr::call), std::move(e));
        arguments(*all);
        e = grown(std::move(all));
      } else {
        return e;
      }
  }

  const std::vector<Token> tokens;
  size_t at = 0;
  int depth = 0, loops = 0;
};

}  // namespace

Block parseTemplate(const std::string &source) { return Parser(source).run(); }

}  // namespace gptc::chat
