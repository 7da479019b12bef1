#include "frontends/toml_document.h"

#include "support/files.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/JSON.h"

// Its assertions fail on some malformed files, which it then reports correctly.
#define TOML_ASSERT(x) static_cast<void>(0)
#include <toml++/toml.h>

namespace gptc {

const char *TomlValue::kind() const {
  constexpr const char *names[] = {"a date", "a boolean", "an integer", "a number", "a string", "an array", "a table"};
  return names[value.index()];
}

namespace {

class Flattener {
public:
  Flattener(TomlDocument &doc, const std::string &text) : doc(doc) { llvm::StringRef(text).split(lines, '\n'); }

  SourceLoc locate(const toml::source_region &region) const {
    SourceLoc loc;
    loc.file = doc.file;
    loc.line = region.begin.line;
    if (loc.line >= 1 && loc.line <= lines.size())
      loc.sourceLine = lines[loc.line - 1].rtrim('\r').str();
    // toml++ counts characters, a SourceLoc counts bytes.
    loc.column = byteColumn(loc.sourceLine, region.begin.column);
    unsigned end = region.end.line == region.begin.line ? byteColumn(loc.sourceLine, region.end.column) : 0;
    loc.length = end > loc.column ? end - loc.column : 1;
    return loc;
  }

  static unsigned byteColumn(const std::string &line, unsigned characterColumn) {
    unsigned byte = 0;
    for (unsigned c = 1; c < characterColumn && byte < line.size(); ++c)
      do
        ++byte;
      while (byte < line.size() && (uint8_t(line[byte]) & 0xc0) == 0x80);
    return byte + 1;
  }

  void table(const toml::table &t, const std::string &prefix) {
    for (auto &&[key, node] : t) {
      std::string name = prefix + std::string(key.str());
      SourceLoc at = locate(key.source());
      if (const toml::table *inner = node.as_table()) {
        doc.tables[name] = at;
        table(*inner, name + ".");
        continue;
      }
      TomlValue v = value(node);
      v.key = at;
      doc.values[name] = std::move(v);
    }
  }

  TomlValue value(const toml::node &node) const {
    TomlValue v;
    v.where = locate(node.source());
    if (auto *b = node.as_boolean())
      v.value = b->get();
    else if (auto *i = node.as_integer())
      v.value = i->get();
    else if (auto *f = node.as_floating_point())
      v.value = f->get();
    else if (auto *s = node.as_string())
      v.value = s->get();
    else if (auto *a = node.as_array()) {
      std::vector<TomlValue> items;
      for (auto &item : *a)
        items.push_back(value(item));
      v.value = std::move(items);
    } else if (auto *t = node.as_table()) {
      TomlTable inner;
      for (auto &&[key, item] : *t) {
        inner.push_back({std::string(key.str()), value(item)});
        inner.back().value.key = locate(key.source());
      }
      v.value = std::move(inner);
    }
    return v;
  }

private:
  TomlDocument &doc;
  llvm::SmallVector<llvm::StringRef, 0> lines;
};

}  // namespace

TomlDocument parseToml(const std::string &text, const std::string &file) {
  TomlDocument doc;
  doc.file = file;
  Flattener flat(doc, text);
  // Dotted keys nest, and the TOML library recurses per level: a line of a hundred thousand dots would overflow the
  // stack.
  constexpr size_t longestLine = 16384;
  unsigned number = 0;
  for (llvm::StringRef rest = text; !rest.empty();) {
    auto [line, after] = rest.split('\n');
    ++number;
    if (line.size() > longestLine)
      throw UserError(Diagnostic{
          ErrorCode::TomlSyntax, fmt::format("{} has a line of {} characters", file, line.size()),
          SourceLoc{file, number, 1, 1, line.take_front(40).str() + "..."}, fmt::format("at most {}", longestLine)});
    rest = after;
  }
  try {
    flat.table(toml::parse(text, file), "");
  } catch (const toml::parse_error &e) {
    Diagnostic d{ErrorCode::TomlSyntax, fmt::format("{} is not valid TOML", file), flat.locate(e.source()),
                 std::string(e.description())};
    throw UserError(d);
  }
  return doc;
}

TomlDocument parseTomlFile(const std::string &file) {
  return parseToml(readInput(file, "model file", kConfigLimit), file);
}

/// Whether the text has only digits, signs, points and exponent letters.
static bool looksLikeNumber(llvm::StringRef text) {
  text.consume_front("-") || text.consume_front("+");
  return !text.empty() && llvm::isDigit(text[0]) && text.find_first_not_of("0123456789._eE+-") == llvm::StringRef::npos;
}

std::string TomlValue::text() const {
  if (const bool *b = std::get_if<bool>(&value))
    return *b ? "true" : "false";
  if (const int64_t *i = std::get_if<int64_t>(&value))
    return fmt::format("{}", *i);
  if (const double *d = std::get_if<double>(&value)) {
    std::string number = fmt::format("{}", *d);
    return number.find_first_not_of("-0123456789") == std::string::npos ? number + ".0" : number;
  }
  if (const std::string *s = std::get_if<std::string>(&value)) {
    std::string out = "\"";
    for (unsigned char c : *s) {
      if (c == '"' || c == '\\')
        out += '\\';
      out += c < 0x20 || c == 0x7f ? fmt::format("\\u{:04x}", c) : std::string(1, char(c));
    }
    return out + '"';
  }
  if (const auto *table = std::get_if<TomlTable>(&value)) {
    std::string out;
    for (const auto &[key, v] : *table)
      out += (out.empty() ? "" : ", ") + TomlValue{key, {}, {}}.text() + " = " + v.text();
    return "{" + out + "}";
  }
  const auto *list = std::get_if<std::vector<TomlValue>>(&value);
  GPTC_CHECK(list, "{} has no text", kind());
  std::string out;
  for (const TomlValue &v : *list)
    out += (out.empty() ? "" : ", ") + v.text();
  return "[" + out + "]";
}

/// Sets the location of a value and all nested values.
static void standAt(TomlValue &v, const SourceLoc &at) {
  v.key = v.where = at;
  if (auto *items = std::get_if<std::vector<TomlValue>>(&v.value))
    for (TomlValue &item : *items)
      standAt(item, at);
  if (auto *table = std::get_if<TomlTable>(&v.value))
    for (auto &[name, inner] : *table)
      standAt(inner, at);
}

std::pair<std::string, TomlValue> parseSetting(const std::string &setting) {
  size_t eq = setting.find('=');
  llvm::StringRef key = llvm::StringRef(setting).substr(0, eq).trim();
  auto isKeyChar = [](char c) { return llvm::isAlnum(c) || c == '_' || c == '-' || c == '.'; };
  if (eq == std::string::npos || key.empty() || !llvm::all_of(key, isKeyChar))
    throw UserError(ErrorCode::Usage, fmt::format("--set {} is not of the form key=value", setting),
                    "for example --set train.steps=100");
  std::string text = llvm::StringRef(setting).substr(eq + 1).trim().str();

  if (!llvm::json::isUTF8(text))
    throw UserError(ErrorCode::Usage, fmt::format("--set {}: the value is not UTF-8", llvm::json::fixUTF8(setting)),
                    "plans and logs hold it, and are UTF-8");

  // Parsed as `v = TEXT`; locations then refer to the whole setting. Several lines are no value but text.
  TomlDocument parsed;
  try {
    if (text.find_first_of("\r\n") == std::string::npos)
      parsed = parseToml("v = " + text, "--set");
  } catch (const UserError &) {
    if (looksLikeNumber(text))
      throw UserError(ErrorCode::OutOfRange, fmt::format("--set {}: {} is no number that can be held", setting, text),
                      "integers go up to 9223372036854775807");
  }
  if (parsed.tables.count("v"))
    throw UserError(ErrorCode::WrongType, fmt::format("--set {}: a table is set key by key", setting),
                    fmt::format("for example --set {}.KEY=VALUE", key.str()));
  TomlValue v;
  v.value = text;
  if (const auto it = parsed.values.find("v"); it != parsed.values.end())
    v = it->second;
  SourceLoc at;
  at.file = "--set";
  at.line = 1;
  at.sourceLine = setting;
  SourceLoc value = at;
  value.column = text.empty() ? eq + 2 : setting.find(text, eq) + 1;
  value.length = text.empty() ? 1 : text.size();
  standAt(v, value);
  v.key = std::move(at);
  v.key.column = setting.find(key.str()) + 1;
  v.key.length = key.size();
  return {key.str(), v};
}

}  // namespace gptc
