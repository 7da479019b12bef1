// What own tokenizers learn from: counted piece by piece, so that a corpus need not fit into memory.
#pragma once

#include "llvm/ADT/StringMap.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gptc {

/// GPT-2's words of a text and how often they occur.
class WordCounts {
public:
  /// A text ends where one of its words does.
  void add(std::string_view text);
  void add(const WordCounts &others);
  const llvm::StringMap<int64_t> &words() const { return counts; }

private:
  llvm::StringMap<int64_t> counts;
};

/// The characters of texts, which must be valid UTF-8.
class CharacterSet {
public:
  void add(std::string_view text);
  void add(const CharacterSet &others);
  bool holds(uint32_t character) const { return used[character]; }

private:
  std::vector<bool> used = std::vector<bool>(0x110000);
};

}  // namespace gptc
