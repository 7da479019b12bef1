// Regular expressions of tokenizer files, by Oniguruma, the engine that Hugging Face's `tokenizers` uses: its Ruby
// syntax, Unicode 14. The library (libonig.so.5) is loaded when the first expression is compiled, so that programs
// start without it; the words of GPT-2, cl100k, Llama 3 and Qwen 2 need none (words.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gptc {

/// Bounds what all searches of this thread take together as long as it lives, by the bytes of a text. One within
/// another counts to the outer one.
class RegexWork {
public:
  explicit RegexWork(size_t bytes);
  ~RegexWork();
  RegexWork(const RegexWork &) = delete;
};

class Regex {
public:
  /// `where`: the place in a file, for messages. Throws UserErrors DataInvalid for what is no expression, and
  /// TargetUnavailable if the library is missing.
  Regex(const std::string &pattern, const std::string &where);

  struct Match {
    size_t begin, end;  // in bytes
  };
  /// The first match at or after `from`. The text must be valid UTF-8; more than one thread may search. A file may be
  /// hostile, so steps and memory of a search, and of all within a RegexWork, are limited: throws
  /// UserError(DataInvalid) beyond.
  std::optional<Match> find(std::string_view text, size_t from) const;
  /// All matches that do not overlap; an empty one counts if it does not touch the one before it.
  std::vector<Match> findAll(std::string_view text) const;

private:
  std::shared_ptr<void> compiled;
  std::string where;
};

}  // namespace gptc
