// Tokens that stand beside a model's vocabulary and are found in a text before it is cut into words. Control tokens
// (special = true) mark the beginning of a text or a turn of a conversation.
#pragma once

#include "frontends/tokenizer/byte_trie.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gptc {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool singleWord = false;                     // only where no word character stands beside it
  bool stripLeft = false, stripRight = false;  // takes the white space beside it
  bool normalized = false;                     // is looked for after the normalizer, itself normalized
  bool special = false;
};

/// A piece of a text: a token, or text between tokens.
struct Section {
  std::string_view text;
  int32_t token = -1;  // -1: text
};

using ByteRanges = std::vector<std::pair<size_t, size_t>>;  // begin and end of each, in order

/// Whether bytes `begin` to `end` have a part in one of the ranges.
bool touches(const ByteRanges &ranges, size_t begin, size_t end);

class AddedTokens {
public:
  /// `needle`: what to look for, the content or its normalized form.
  void add(AddedToken token, std::string_view needle);
  bool empty() const { return trie.empty(); }
  /// Appends the sections of a text. Of tokens that begin at one place the longest counts. Control tokens are text
  /// unless `parseSpecial`, and where they touch a foreign range. Returns how many control tokens stand in the text.
  int64_t split(std::string_view text, bool parseSpecial, const ByteRanges &foreign, std::vector<Section> &out) const;
  /// Whether no token is changed by cutting a text between an ASCII letter and a line feed or a space.
  bool local() const { return onlyLocal; }

private:
  std::vector<AddedToken> tokens;
  ByteTrie trie;  // needle -> index of the token
  std::string firstBytes;
  bool onlyLocal = true;
};

}  // namespace gptc
