// Lines of a file or of standard input, as they come.
#pragma once

#include <optional>
#include <string>

namespace gptc {

class Lines {
public:
  /// `path`: "-" for standard input. Throws UserError(FileMissing), whose help begins with `help`.
  Lines(const std::string &path, const std::string &help);
  ~Lines();
  Lines(const Lines &) = delete;
  /// "FILE" or "standard input".
  std::string name() const { return path == "-" ? "standard input" : path; }
  /// Whether next() would not wait.
  bool ready();
  /// The next line without its end; nothing behind the last. Throws UserError: FileMissing if reading fails, TooLarge
  /// for a line of more than 256 MiB.
  std::optional<std::string> next();

private:
  bool hasLine();
  void readMore();

  const std::string path;
  const int fd;
  std::string pending;  // from the next line on
  size_t searched = 0;  // its bytes in which there is no line feed
  bool atEnd = false;
};

}  // namespace gptc
