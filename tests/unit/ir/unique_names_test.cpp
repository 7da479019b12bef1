// One definition of each type in the whole tree, read from the sources: two types of one qualified name break the
// one-definition rule, which neither the compiler nor the linker reports.
#include "tests/support/content.h"
#include "tests/unit/ir/source_tree.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

#include <gtest/gtest.h>

#include <map>

namespace {

using gptc::test::sourceFiles;
using llvm::StringRef;

struct Token {
  StringRef text;  // a word, "::", or another character
  size_t line;
};

bool isWord(StringRef token) { return llvm::isAlnum(token[0]) || token[0] == '_'; }

/// The tokens of a file without comments, literals and directives. Of conditional text the first branch is read.
class Lexer {
public:
  explicit Lexer(StringRef text) : rest(text) {}

  std::vector<Token> run() {
    while (!rest.empty()) {
      if (rest[0] == '\n')
        startsLine = true, take(1);
      else if (llvm::isSpace(rest[0]))
        take(1);
      else if (rest[0] == '#' && startsLine)
        directive();
      else
        startsLine = false, token();
    }
    return std::move(tokens);
  }

private:
  StringRef rest;
  size_t line = 1;
  bool startsLine = true;
  std::vector<char> branches;  // of conditional text around this place: whether it is a later one
  std::vector<Token> tokens;

  StringRef take(size_t n) {
    const StringRef taken = rest.take_front(n);
    rest = rest.drop_front(taken.size());
    line += taken.count('\n');
    return taken;
  }
  void takeThrough(StringRef end) {
    const size_t at = rest.find(end);
    take(at == StringRef::npos ? at : at + end.size());
  }

  void directive() {
    size_t n = rest.find('\n');
    while (n != StringRef::npos && rest[n - 1] == '\\')
      n = rest.find('\n', n + 1);
    const StringRef what = take(n).drop_front().ltrim();
    if (what.starts_with("if"))
      branches.push_back(false);
    else if (what.starts_with("el") && !branches.empty())
      branches.back() = true;
    else if (what.starts_with("endif") && !branches.empty())
      branches.pop_back();
  }

  void literal() {
    size_t n = 1;
    while (n < rest.size() && rest[n] != rest[0])
      n += rest[n] == '\\' ? 2 : 1;
    take(n + 1);
  }

  void token() {
    const bool digits = llvm::isDigit(rest[0]);
    const size_t start = line;
    if (rest.starts_with("//"))
      return void(take(rest.find('\n')));
    if (rest.starts_with("/*"))
      return takeThrough("*/");
    if (rest[0] == '"' || rest[0] == '\'')
      return literal();
    StringRef text;
    if (isWord(rest))
      text =
          take(rest.take_while([&](char c) { return llvm::isAlnum(c) || c == '_' || (digits && c == '\''); }).size());
    else
      text = take(rest.starts_with("::") ? 2 : 1);
    if (llvm::is_contained({"R", "LR", "uR", "UR", "u8R"}, text) && rest.starts_with("\""))  // a raw string
      return takeThrough((")" + rest.drop_front().take_until([](char c) { return c == '('; }) + "\"").str());
    if (!llvm::is_contained(branches, true))
      tokens.push_back({text, start});
  }
};

struct Definition {
  std::string name;  // gptc::Block
  size_t line;
};

/// The types that a file defines at namespace scope, outside anonymous namespaces.
class Definitions {
public:
  explicit Definitions(StringRef text) : tokens(Lexer(text).run()) {}

  std::vector<Definition> all;
  bool balanced = true;

  void read() {
    std::vector<StringRef> head;  // of the declaration that begins
    for (size_t at = 0; at < tokens.size(); ++at) {
      const StringRef token = tokens[at].text;
      if (token == ";") {
        head.clear();
      } else if (token == "}") {
        balanced &= !scopes.empty();
        if (!scopes.empty())
          scopes.pop_back();
        head.clear();
      } else if (token != "{") {
        head.push_back(token);
      } else {
        if (!entersNamespace(head)) {
          if (const std::string name = typeOf(head); !name.empty() && !llvm::is_contained(scopes, anonymous))
            all.push_back({llvm::join(scopes, "") + name, tokens[at].line});
          at = skip(at);
        }
        head.clear();
      }
    }
    balanced &= scopes.empty();
  }

private:
  static constexpr const char *anonymous = "?::";

  const std::vector<Token> tokens;
  std::vector<std::string> scopes;  // "gptc::", "" for extern "C"

  bool entersNamespace(llvm::ArrayRef<StringRef> head) {
    if (head.size() > 1 && head[0] == "inline")
      head = head.drop_front();
    if (head.size() == 1 && head[0] == "extern")
      return scopes.emplace_back(), true;
    if (head.empty() || head[0] != "namespace")
      return false;
    scopes.push_back(head.size() == 1 ? anonymous : llvm::join(head.drop_front(), "") + "::");
    return true;
  }

  /// Where the brace at `at` is closed.
  size_t skip(size_t at) {
    for (size_t open = 0; at < tokens.size(); ++at) {
      open += tokens[at].text == "{";
      open -= tokens[at].text == "}";
      if (open == 0)
        return at;
    }
    balanced = false;
    return at;
  }

  static bool isKey(StringRef token) { return llvm::is_contained({"struct", "class", "union", "enum"}, token); }

  /// Takes what a bracket at the front opens, the bracket included.
  static std::string takeGroup(llvm::ArrayRef<StringRef> &head, char open, char closing) {
    std::string taken;
    size_t depth = 0;
    do {
      const char c = head[0][0];
      if (c == '(' && open != '(') {  // (a > b)
        taken += takeGroup(head, '(', ')');
        continue;
      }
      depth += c == open;
      depth -= c == closing;
      taken += head[0];
      head = head.drop_front();
    } while (depth && !head.empty());
    return taken;
  }

  /// The name of the type whose body follows; empty for a function, a variable, or a type without a name.
  static std::string typeOf(llvm::ArrayRef<StringRef> head) {
    auto begins = [&](StringRef word) { return !head.empty() && head[0] == word; };
    while (begins("template")) {
      head = head.drop_front();
      if (begins("<"))
        takeGroup(head, '<', '>');
    }
    if (begins("requires"))
      head = head.drop_until(isKey);
    while (!head.empty() && llvm::is_contained({"typedef", "static", "const", "constexpr", "inline"}, head[0]))
      head = head.drop_front();
    if (head.empty() || !isKey(head[0]))
      return "";
    const bool isEnum = begins("enum");
    head = head.drop_front();
    if (isEnum && (begins("class") || begins("struct")))
      head = head.drop_front();
    while (begins("[") || begins("alignas")) {
      if (begins("alignas"))
        head = head.drop_front();
      begins("[") ? takeGroup(head, '[', ']') : takeGroup(head, '(', ')');
    }
    std::string name;
    while (!head.empty()) {
      if (begins("<")) {
        name += takeGroup(head, '<', '>');  // of a specialization
        continue;
      }
      if (head[0] != "::" &&
          (!isWord(head[0]) || begins("final") || (!name.empty() && !StringRef(name).ends_with("::"))))
        break;
      name += head[0];
      head = head.drop_front();
    }
    return head.empty() || begins("final") || begins(":") ? name : "";
  }
};

std::string readFile(const std::filesystem::path &path) {
  return gptc::test::contentOf(std::filesystem::path(GPTC_SOURCE_DIR) / path);
}

// Device text is left out, for each kernel's is compiled alone, and the planted bugs, which are pieces of text.
TEST(Architecture, ANamespaceHasATypeOnce) {
  std::map<std::string, std::string> places;
  for (const std::filesystem::path &path : sourceFiles()) {
    const std::string extension = path.extension();
    if (extension == ".cuh" || extension == ".cu" || path.parent_path() == "tests/planted")
      continue;
    const std::string text = readFile(path);
    Definitions types(text);
    types.read();
    EXPECT_TRUE(types.balanced) << path << ": its braces were not understood";
    for (const Definition &d : types.all) {
      const std::string place = path.string() + ":" + std::to_string(d.line);
      const auto [first, isNew] = places.emplace(d.name, place);
      EXPECT_TRUE(isNew) << d.name << " is defined in " << first->second << " and in " << place
                         << ": one of the two needs another name, or an anonymous namespace";
    }
  }
  EXPECT_GT(places.size(), 500u) << "nothing was read";
}

TEST(Architecture, DefinitionsOfTypesAreFound) {
  Definitions types(R"text(
    struct Forward;
    struct { int unnamed; } variable;
    struct stat statOf(int fd) { return {}; }
    namespace a::b {
    inline namespace c { class [[nodiscard]] Deep final : public Base<int> { struct Inner {}; }; }
    /* struct InAComment {}; */  // struct InAnother {};
    const char *text = "struct InText {", *raw = R"(struct InRawText {)", brace = '{';
    enum class alignas(8) Kind : uint8_t { one = 1'000 };
    template <bool B = (1 > 0), typename T = X<Y<int>>> struct Pattern { void f() { struct Local {}; } };
    template <> struct Pattern<true, int> {};
    template <typename T> requires C<T> union Either {};
    struct Outer::Hidden : Other {};
    namespace { struct Anonymous {}; namespace inner { struct Also {}; } }
    }
    extern "C" { struct Plain {}; }
    #if defined(FIRST)
    typedef struct Branch {} Branch;
    #else
    struct Branch {};
    #endif
    #define MACRO struct \
      InAMacro {};
    int last[] = {1, 2}, more{3};
  )text");
  types.read();
  std::vector<std::string> names;
  for (const Definition &d : types.all)
    names.push_back(d.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a::b::c::Deep", "a::b::Kind", "a::b::Pattern", "a::b::Pattern<true,int>",
                                             "a::b::Either", "a::b::Outer::Hidden", "Plain", "Branch"}));
  EXPECT_EQ(types.all.front().line, 6u);
  EXPECT_TRUE(types.balanced);
}

}  // namespace
