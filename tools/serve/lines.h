// Lines of a file or of standard input, as they come.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace gptc {

/// Opens a file of lines; standard input for "-". Throws UserError(FileMissing), whose help begins with `help`.
int openLines(const std::string &path, const std::string &help);

class Lines {
public:
  /// Throws what openLines throws.
  Lines(const std::string &path, const std::string &help) : path(path), fd(openLines(path, help)) {}
  /// Those of an open file, which `path` names in errors. It is closed in the end, but for standard input.
  Lines(const std::string &path, int fd) : path(path), fd(fd) {}
  /// Those of a text that was read from there before.
  struct Text {
    std::string all;
  };
  Lines(const std::string &path, Text text) : path(path), fd(-1), pending(std::move(text.all)), atEnd(true) {}
  ~Lines();
  Lines(const Lines &) = delete;
  /// "FILE" or "standard input".
  std::string name() const { return path == "-" ? "standard input" : path; }
  /// Whether next() would not wait.
  bool ready();
  /// The next line without its end; nothing behind the last. Throws UserError: FileMissing if reading fails, TooLarge
  /// for a line of more than 256 MiB.
  std::optional<std::string> next();

  /// All that follows, of which nothing is left here. Throws next()'s errors.
  std::string rest();

private:
  bool hasLine();
  void readMore();

  const std::string path;
  const int fd;
  std::string pending;  // from `begin` on what is not given yet
  size_t begin = 0;
  size_t searched = 0;  // bytes of `pending`; from `begin` up to there is no line feed
  bool atEnd = false;
};

}  // namespace gptc
