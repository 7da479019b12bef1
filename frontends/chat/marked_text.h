// Strings that know which of their bytes a template wrote, and which came from outside.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gptc {

/// UTF-8, with the ranges of bytes that are foreign: parts of messages, which may not play a template's control tokens.
class MarkedText {
public:
  using Range = std::pair<size_t, size_t>;  // begin, end

  MarkedText() = default;
  explicit MarkedText(std::string bytes, bool isForeign = false);

  const std::string &bytes() const { return all; }
  size_t size() const { return all.size(); }
  /// In order; no two touch.
  const std::vector<Range> &foreign() const { return ranges; }

  MarkedText part(size_t begin, size_t end) const;
  void append(const MarkedText &other);
  /// Pieces of it, in order, by a function: each foreign range, and what stands between them.
  MarkedText mapped(const std::function<std::string(std::string_view)> &piece) const;

private:
  std::string all;
  std::vector<Range> ranges;
};

/// Characters of UTF-8.
size_t countCharacters(std::string_view text);
/// Where a character begins; the size for those behind the last.
size_t offsetOfCharacter(std::string_view text, size_t character);

}  // namespace gptc
