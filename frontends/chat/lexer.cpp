#include "frontends/chat/lexer.h"

#include "frontends/chat/value.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

#include <fmt/format.h>

namespace gptc::chat {
namespace {

using llvm::StringRef;

class Lexer {
public:
  explicit Lexer(StringRef source) : source(source) {}

  std::vector<Token> run() {
    source.consume_back("\n");  // keep_trailing_newline is off
    while (at < source.size())
      takeText();
    add(Token::end, "");
    return std::move(tokens);
  }

private:
  [[noreturn]] void wrong(const std::string &what) const { fail(fmt::format("line {}: {}", line, what)); }
  StringRef rest() const { return source.substr(at); }
  void add(Token::Kind kind, StringRef content) { tokens.push_back({kind, content.str(), line}); }
  void skip(size_t n) {
    line += int(source.substr(at, n).count('\n'));
    at += n;
  }

  size_t findTag() const {
    for (size_t i = source.find('{', at); i != StringRef::npos; i = source.find('{', i + 1))
      if (i + 1 < source.size() && StringRef("{%#").contains(source[i + 1]))
        return i;
    return StringRef::npos;
  }

  /// Text up to the next tag, then the tag.
  void takeText() {
    const size_t begin = findTag();
    const bool isLast = begin == StringRef::npos;
    StringRef text = source.slice(at, begin);
    const char kind = isLast ? 0 : source[begin + 1];
    const char modifier = isLast || begin + 2 >= source.size() ? 0 : source[begin + 2];
    StringRef shown = text;
    if (!isLast && modifier == '-') {
      shown = shown.rtrim();
    } else if (!isLast && kind != '{' && modifier != '+') {
      // lstrip_blocks: a tag that begins its line takes the blanks before it along.
      const size_t lineBegin = text.rfind('\n') + 1;
      if ((lineBegin > 0 || atLineBegin) && text.substr(lineBegin).trim(" \t\r\f\v").empty())
        shown = text.take_front(lineBegin);
    }
    if (!shown.empty())
      add(Token::text, shown);
    skip(text.size());
    if (isLast)
      return;
    skip(2 + (modifier == '-' || modifier == '+' ? 1 : 0));
    if (kind == '#')
      takeComment();
    else
      takeTag(kind == '{');
  }

  void takeComment() {
    const size_t end = source.find("#}", at);
    if (end == StringRef::npos)
      wrong("a comment without end");
    const bool trims = end > at && source[end - 1] == '-';
    skip(end - at + 2);
    behindTag(trims, true);
  }

  void takeTag(bool isOutput) {
    if (!isOutput && takeRaw())
      return;
    add(isOutput ? Token::beginOutput : Token::beginTag, "");
    const StringRef close = isOutput ? "}}" : "%}";
    int depth = 0;
    for (;;) {
      skip(rest().size() - rest().ltrim().size());
      if (rest().empty())
        wrong("a tag without end");
      const bool minus = rest().starts_with("-") && rest().substr(1).starts_with(close);
      if (depth == 0 && (minus || rest().starts_with(close))) {
        add(isOutput ? Token::endOutput : Token::endTag, "");
        skip(minus ? 3 : 2);
        return behindTag(minus, !isOutput);
      }
      if (!isOutput && depth == 0 && rest().starts_with("+%}")) {
        add(Token::endTag, "");
        skip(3);
        return behindTag(false, false);
      }
      takeToken(depth);
    }
  }

  /// {% raw %} to {% endraw %} is text.
  bool takeRaw() {
    StringRef tag = rest().ltrim();
    if (!tag.consume_front("raw") || !(tag = tag.ltrim("-+ \t\n")).starts_with("%}"))
      return false;
    const size_t begin = size_t(tag.data() - source.data()) + 2;
    for (size_t end = begin; (end = source.find("{%", end)) != StringRef::npos; end += 2) {
      StringRef closing = source.substr(end + 2).ltrim("-+ \t\n");
      if (!closing.consume_front("endraw") || !(closing = closing.ltrim("-+ \t\n")).starts_with("%}"))
        continue;
      add(Token::text, source.slice(begin, end));
      skip(size_t(closing.data() - source.data()) + 2 - at);
      return true;
    }
    wrong("raw without endraw");
  }

  void behindTag(bool trims, bool isBlock) {
    atLineBegin = false;
    if (trims) {
      const StringRef blank = rest().take_front(rest().size() - rest().ltrim().size());
      atLineBegin = blank.ends_with("\n");
      skip(blank.size());
    } else if (isBlock && rest().starts_with("\n")) {  // trim_blocks
      skip(1);
      atLineBegin = true;
    }
  }

  void takeToken(int &depth) {
    const char c = rest()[0];
    if (llvm::isAlpha(c) || c == '_') {
      const StringRef word = rest().take_while([](char x) { return llvm::isAlnum(x) || x == '_'; });
      add(Token::name, word);
      return skip(word.size());
    }
    if (llvm::isDigit(c))
      return takeNumber();
    if (c == '\'' || c == '"')
      return takeString(c);
    for (const StringRef symbol : {"//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
                                   ">",  "=",  ".",  ",",  ":",  "|",  "(", ")", "[", "]", "{", "}"})
      if (rest().starts_with(symbol)) {
        depth += StringRef("([{").contains(symbol) ? 1 : StringRef(")]}").contains(symbol) ? -1 : 0;
        add(Token::symbol, symbol);
        return skip(symbol.size());
      }
    wrong(fmt::format("what is {}?", rest().take_front(1).str()));
  }

  void takeNumber() {
    StringRef digits = rest().take_while([](char x) { return llvm::isDigit(x) || x == '_'; });
    bool isReal = false;
    StringRef more = rest().substr(digits.size());
    if (more.size() > 1 && more[0] == '.' && llvm::isDigit(more[1])) {
      isReal = true;
      digits = rest().take_front(digits.size() + 1 + more.substr(1).take_while(llvm::isDigit).size());
    }
    more = rest().substr(digits.size());
    if (const size_t sign = more.size() > 1 && (more[1] == '-' || more[1] == '+') ? 2 : 1;
        more.starts_with_insensitive("e") && more.size() > sign && llvm::isDigit(more[sign])) {
      isReal = true;
      digits = rest().take_front(digits.size() + sign + more.substr(sign).take_while(llvm::isDigit).size());
    }
    std::string plain = digits.str();
    plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
    add(isReal ? Token::real : Token::integer, plain);
    skip(digits.size());
  }

  void takeString(char quote) {
    std::string content;
    size_t i = 1;
    for (; i < rest().size() && rest()[i] != quote; ++i) {
      const char c = rest()[i];
      if (c != '\\' || i + 1 >= rest().size()) {
        content += c;
        continue;
      }
      switch (const char escaped = rest()[++i]) {
      case 'n':
        content += '\n';
        break;
      case 't':
        content += '\t';
        break;
      case 'r':
        content += '\r';
        break;
      case '\n':
        break;
      case '\\':
      case '\'':
      case '"':
        content += escaped;
        break;
      case 'u':
      case 'x': {
        const size_t digits = escaped == 'u' ? 4 : 2;
        unsigned code = 0;
        if (rest().substr(i + 1, digits).getAsInteger(16, code) || rest().substr(i + 1, digits).size() != digits)
          wrong("an escape without its digits");
        appendUtf8(content, code);
        i += digits;
        break;
      }
      default:
        content += '\\', content += escaped;
      }
    }
    if (i >= rest().size())
      wrong("a string without end");
    add(Token::string, content);
    skip(i + 1);
  }

  static void appendUtf8(std::string &out, unsigned code) {
    if (code < 0x80) {
      out += char(code);
    } else if (code < 0x800) {
      out += char(0xC0 | (code >> 6));
      out += char(0x80 | (code & 0x3F));
    } else {
      out += char(0xE0 | (code >> 12));
      out += char(0x80 | ((code >> 6) & 0x3F));
      out += char(0x80 | (code & 0x3F));
    }
  }

  StringRef source;
  size_t at = 0;
  int line = 1;
  bool atLineBegin = true;
  std::vector<Token> tokens;
};

}  // namespace

std::vector<Token> lexTemplate(const std::string &source) { return Lexer(source).run(); }

}  // namespace gptc::chat
