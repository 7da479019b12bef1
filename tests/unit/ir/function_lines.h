// How long the functions of a C++ text are, told by its layout.
#pragma once

#include <cctype>
#include <istream>
#include <string>
#include <vector>

namespace gptc::test {

/// Follows literals and comments from line to line, so that what stands in them is not taken for code.
class CodeLines {
public:
  /// Whether the line begins as code: in no raw literal and no comment that an earlier line has begun.
  bool beginsAsCode(const std::string &line) {
    const bool code = rawEnd.empty() && !comment;
    for (size_t at = 0; at < line.size();)
      at = !rawEnd.empty() ? behind(line, at, rawEnd, [this] { rawEnd.clear(); })
           : comment       ? behind(line, at, "*/", [this] { comment = false; })
                           : behindToken(line, at);
    return code;
  }

private:
  template <typename F> static size_t behind(const std::string &line, size_t at, const std::string &end, F ends) {
    const size_t found = line.find(end, at);
    if (found == line.npos)
      return line.size();
    const size_t next = found + end.size();
    ends();
    return next;
  }

  static bool isOfName(char c) { return std::isalnum((unsigned char)c) || c == '_'; }

  size_t behindToken(const std::string &line, size_t at) {
    if (line.compare(at, 2, "//") == 0)
      return line.size();
    if (line.compare(at, 2, "/*") == 0) {
      comment = true;
      return at + 2;
    }
    if (isOfName(line[at])) {  // a name or a number with its marks of thousands
      const size_t begin = at;
      const bool number = std::isdigit((unsigned char)line[at]);
      while (at < line.size() && (isOfName(line[at]) || (number && line[at] == '\'')))
        ++at;
      const std::string name = line.substr(begin, at - begin);
      const bool raw = name == "R" || name == "LR" || name == "uR" || name == "UR" || name == "u8R";
      const size_t open = raw && at < line.size() && line[at] == '"' ? line.find('(', at) : line.npos;
      if (open == line.npos)
        return at;
      rawEnd = ")" + line.substr(at + 1, open - at - 1) + "\"";
      return open + 1;
    }
    if (const char quote = line[at]; quote == '"' || quote == '\'') {
      for (++at; at < line.size() && line[at] != quote; ++at)
        at += line[at] == '\\';
      return at + 1;
    }
    return at + 1;
  }

  std::string rawEnd;    // of the raw literal that is open
  bool comment = false;  // one of /* is open
};

struct FunctionLines {
  std::string head;  // its first line
  int lines;
};

/// The functions that begin and end in the first column, with what else does.
inline std::vector<FunctionLines> functionLines(std::istream &text) {
  std::vector<FunctionLines> all;
  CodeLines code;
  int length = 0;
  for (std::string line, head; std::getline(text, line); ++length) {
    if (!code.beginsAsCode(line) || line.empty())
      continue;
    if (std::isalpha((unsigned char)line[0]) || line[0] == '_') {
      head = line;
      length = 1;
    } else if (line == "}") {
      all.push_back({head, length});
    }
  }
  return all;
}

}  // namespace gptc::test
