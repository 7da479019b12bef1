#include "support/diagnostics.h"

#include <algorithm>

namespace gptc {

namespace {

// ANSI sequences, empty without colours.
struct Palette {
  const char *error, *frame, *bold, *off;
};
constexpr Palette plain = {"", "", "", ""};
constexpr Palette coloured = {"\033[1;31m", "\033[1;34m", "\033[1m", "\033[0m"};

// Of a longer line, only the part around the column is shown: damaged input may be one line of megabytes.
constexpr size_t maxShown = 160;

bool continuesCharacter(char c) { return (uint8_t(c) & 0xc0) == 0x80; }

/// Length in bytes of the printable UTF-8 character at the front of `text`; 0 if there is none.
size_t printableBytes(llvm::StringRef text) {
  const uint8_t first = text.empty() ? 0 : text[0];
  if (first < 0x80)
    return first >= 0x20 && first != 0x7f;
  const size_t n = first >= 0xf5 ? 0 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
  if (n == 0 || text.size() < n)
    return 0;
  for (size_t i = 1; i < n; ++i)
    if (!continuesCharacter(text[i]))
      return 0;
  return first == 0xc2 && uint8_t(text[1]) < 0xa0 ? 0 : n;  // C1 control characters
}

/// Escapes control characters and invalid UTF-8 as \xHH: messages quote damaged input, which must not reach the
/// terminal.
std::string printable(llvm::StringRef text) {
  std::string out;
  while (!text.empty()) {
    const size_t n = printableBytes(text);
    if (n || text[0] == '\n' || text[0] == '\t')
      out += text.take_front(std::max<size_t>(n, 1));
    else
      out += fmt::format("\\x{:02x}", uint8_t(text[0]));
    text = text.drop_front(std::max<size_t>(n, 1));
  }
  return out;
}

/// The quoted line and its underline. Columns are bytes from 1; a character of several bytes takes one place in the
/// output. Tabs stay tabs, so that the underline matches at any tab width.
struct Excerpt {
  std::string text;
  std::string underline;

  Excerpt(const SourceLoc &where) {
    const std::string &line = where.sourceLine;
    size_t column = std::min<size_t>(where.column ? where.column - 1 : 0, line.size());
    size_t begin = 0;
    size_t end = line.size();
    if (end > maxShown) {
      begin = column > maxShown / 2 ? column - maxShown / 2 : 0;
      for (int i = 0; i < 3 && begin > 0 && begin < line.size() && continuesCharacter(line[begin]); ++i)
        --begin;
      end = std::min(line.size(), begin + maxShown);
      for (int i = 0; i < 3 && end < line.size() && continuesCharacter(line[end]); ++i)
        ++end;
    }
    if (begin > 0) {
      text = "...";
      underline = "   ";
    }
    size_t last = std::min<size_t>(end, column + std::max(1u, where.length));
    for (size_t i = begin; i < end;) {
      const size_t n = printableBytes(llvm::StringRef(line).slice(i, end));
      const bool tab = line[i] == '\t';
      text += n || tab ? line.substr(i, std::max<size_t>(n, 1)) : "?";
      if (i < column)
        underline += tab ? '\t' : ' ';
      else if (i < last)
        underline += '^';
      i += std::max<size_t>(n, 1);
    }
    if (column >= end)
      underline += '^';  // just past the end of the line
    if (end < line.size())
      text += "...";
  }
};

}  // namespace

std::string codeName(ErrorCode code) { return fmt::format("GPTC{:04}", int(code)); }

int exitCodeOf(ErrorCode code) {
  switch (code) {
#define GPTC_ERROR(name, number, exit_code, title, remedy)                                                             \
  case ErrorCode::name:                                                                                                \
    return exit_code;
#include "support/errors.def"
#undef GPTC_ERROR
  }
  return 70;
}

std::string Diagnostic::str(bool color) const {
  const Palette &p = color ? coloured : plain;
  std::string s =
      fmt::format("{}error[{}]{}{}: {}{}\n", p.error, codeName(code), p.off, p.bold, printable(message), p.off);
  std::string margin = " ";
  bool labelShown = label.empty();
  if (!where.file.empty()) {
    std::string number = where.line ? std::to_string(where.line) : "";
    margin = std::string(std::max<size_t>(number.size(), 1), ' ');
    s += fmt::format("{}{}-->{} {}", margin, p.frame, p.off, printable(where.file));
    if (where.line) {
      s += ":" + number;
      if (where.column)
        s += fmt::format(":{}", where.column);
    }
    s += '\n';
    if (where.line && (!where.sourceLine.empty() || where.column)) {
      Excerpt e(where);
      s += fmt::format("{} {}|{}\n", margin, p.frame, p.off);
      s += fmt::format("{}{:>{}} |{} {}\n", p.frame, number, margin.size(), p.off, e.text);
      s += fmt::format("{} {}|{} {}{}{}{}{}\n", margin, p.frame, p.off, e.underline.substr(0, e.underline.find('^')),
                       p.error, e.underline.substr(std::min(e.underline.find('^'), e.underline.size())),
                       label.empty() ? "" : " " + printable(label), p.off);
      labelShown = true;
    }
  }
  auto trailer = [&](const char *kind, const std::string &text) {
    s += fmt::format("{} {}={} {}{}{}: {}\n", margin, p.frame, p.off, p.bold, kind, p.off, printable(text));
  };
  if (!labelShown)
    trailer("note", label);
  for (const std::string &n : notes)
    trailer("note", n);
  for (const std::string &h : help)
    trailer("help", h);
  return s;
}

UserError::UserError(Diagnostic d) : diagnostics{std::move(d)} { text = diagnostics[0].str(); }
UserError::UserError(const UserError &) = default;
UserError::~UserError() = default;
UserError::UserError(std::vector<Diagnostic> ds) : diagnostics(std::move(ds)) {
  GPTC_CHECK(!diagnostics.empty(), "a UserError needs a diagnostic");
  for (const Diagnostic &d : diagnostics)
    text += (text.empty() ? "" : "\n") + d.str();
}

UserError::UserError(ErrorCode code, std::string message, std::string help) {
  Diagnostic d{code, std::move(message), {}, "", {}, {}};
  if (!help.empty())
    d.help.push_back(std::move(help));
  text = d.str();
  diagnostics.push_back(std::move(d));
}

InternalError::InternalError(const InternalError &) = default;
InternalError::~InternalError() = default;
InternalError::InternalError(const char *file, int line, std::string message) {
  llvm::StringRef path = file;
  while (path.consume_front("../")) {  // __FILE__ is relative to the build folder
  }
  text = fmt::format("internal error at {}:{}: {}", path.str(), line, message);
}

void throwInternalError(const char *file, int line, std::string message) {
  throw InternalError(file, line, std::move(message));
}

}  // namespace gptc
