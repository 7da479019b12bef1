// The two kinds of errors:
//   UserError      the input, the machine or a file is at fault. Printed in rustc's layout, with a code and a fix.
//   InternalError  gptc is at fault. Names our file and line; exit code 70.
// A rank that fails at run time throws a UserError with a GPTC06xx code. errors.def lists all codes with their exit
// codes.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <exception>
#include <string>
#include <vector>

namespace gptc {

/// A place in a text file. `line` and `column` (in bytes) count from 1; line 0 stands for the whole file.
struct SourceLoc {
  std::string file;
  unsigned line = 0;
  unsigned column = 0;
  unsigned length = 1;     // of the underlined text, bytes
  std::string sourceLine;  // the text of that line, quoted below the message
};

enum class ErrorCode : int {
#define GPTC_ERROR(name, number, exit_code, title, remedy) name = number,
#include "support/errors.def"
#undef GPTC_ERROR
};
int exitCodeOf(ErrorCode code);
/// "GPTC0401", as messages and tables name it.
std::string codeName(ErrorCode code);

struct Diagnostic {
  ErrorCode code;
  std::string message;
  SourceLoc where;    // no place if `file` is empty
  std::string label;  // printed beside the underline
  std::vector<std::string> help;
  std::vector<std::string> notes;
  /// The message in rustc's layout, ending in a newline, with ANSI colours if `color`.
  std::string str(bool color = false) const;
};

class UserError : public std::exception {
public:
  explicit UserError(Diagnostic d);
  explicit UserError(std::vector<Diagnostic> ds);
  UserError(ErrorCode code, std::string message, std::string help = "");
  UserError(const UserError &);
  ~UserError() override;
  std::vector<Diagnostic> diagnostics;  // never empty
  int exitCode() const { return exitCodeOf(diagnostics[0].code); }
  const char *what() const noexcept override { return text.c_str(); }

private:
  std::string text;
};

class InternalError : public std::exception {
public:
  InternalError(const char *file, int line, std::string message);
  InternalError(const InternalError &);
  ~InternalError() override;
  const char *what() const noexcept override { return text.c_str(); }

private:
  std::string text;
};

[[noreturn]] void throwInternalError(const char *file, int line, std::string message);

/// Throws InternalError unless `cond` holds. The other arguments are an fmt format string and its values.
#define GPTC_CHECK(cond, ...)                                                                                          \
  do {                                                                                                                 \
    if (!(cond)) [[unlikely]]                                                                                          \
      ::gptc::throwInternalError(__FILE__, __LINE__, ::fmt::format("`" #cond "` failed: " __VA_ARGS__));               \
  } while (0)
#define GPTC_UNREACHABLE(...) ::gptc::throwInternalError(__FILE__, __LINE__, ::fmt::format(__VA_ARGS__))

}  // namespace gptc

#include <fmt/format.h>
