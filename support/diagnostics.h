// Errors, in three kinds that never mix:
//   UserError      the input, the machine or the files are at fault: printed like rustc's, with a code and a fix.
//   InternalError  gptc is at fault: names our file and line, exit code 70.
//   (Run-time faults of a rank are UserErrors with a GPTC06xx code.)
// Codes are listed in errors.def with their exit code.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <exception>
#include <string>
#include <vector>

namespace gptc {

/// A place in a text file. line and column count from 1; line 0 means "the file as a whole".
struct SourceLoc {
  std::string file;
  unsigned line = 0;
  unsigned column = 0;
  unsigned length = 1;     // of the underlined text
  std::string sourceLine;  // the text of that line, quoted below the message
};

enum class ErrorCode : int {
#define GPTC_ERROR(name, number, exit_code, title, remedy) name = number,
#include "support/errors.def"
#undef GPTC_ERROR
};
int exitCodeOf(ErrorCode code);

struct Diagnostic {
  ErrorCode code;
  std::string message;
  SourceLoc where;    // file empty: none
  std::string label;  // stands beside the underline
  std::vector<std::string> help;
  std::vector<std::string> notes;
  /// rustc-like text, ending in a newline. `color` uses ANSI sequences.
  std::string str(bool color = false) const;
};

class UserError : public std::exception {
public:
  explicit UserError(Diagnostic d) : diagnostics{std::move(d)} { text = diagnostics[0].str(); }
  explicit UserError(std::vector<Diagnostic> ds);
  UserError(ErrorCode code, std::string message, std::string help = "");
  std::vector<Diagnostic> diagnostics;  // never empty
  int exitCode() const { return exitCodeOf(diagnostics[0].code); }
  const char *what() const noexcept override { return text.c_str(); }

private:
  std::string text;
};

class InternalError : public std::exception {
public:
  InternalError(const char *file, int line, std::string message);
  const char *what() const noexcept override { return text.c_str(); }

private:
  std::string text;
};

/// Throws InternalError unless `cond` holds; the rest is a fmt format.
#define GPTC_CHECK(cond, ...)                                                                                          \
  do {                                                                                                                 \
    if (!(cond)) [[unlikely]]                                                                                          \
      throw ::gptc::InternalError(__FILE__, __LINE__, ::fmt::format("`" #cond "` failed: " __VA_ARGS__));              \
  } while (0)
#define GPTC_UNREACHABLE(...) throw ::gptc::InternalError(__FILE__, __LINE__, ::fmt::format(__VA_ARGS__))

}  // namespace gptc

#include <fmt/format.h>
