// UTF-8, and the Unicode classes that GPT-2's word pattern uses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gptc {

struct CodePoint {
  uint32_t value;   // U+FFFD where the bytes are no UTF-8
  unsigned length;  // bytes used; 1 where they are no UTF-8
  bool valid;
};
/// The character at the front of a non-empty text. Overlong forms, surrogates and values past U+10FFFF are not valid.
CodePoint firstCodePoint(std::string_view text);
/// Appends a character.
void appendUtf8(std::string &out, uint32_t value);
/// Offset of the first byte that is no UTF-8, or npos.
size_t findInvalidUtf8(std::string_view text);
/// Characters of a valid text.
int64_t countCodePoints(std::string_view text);
/// Bytes of the first `count` characters of a valid text.
size_t bytesOfCodePoints(std::string_view text, int64_t count);
/// True when `text` could be the beginning of a character: a lead byte with fewer continuation bytes than it asks for.
bool incompleteCodePoint(std::string_view text);

/// General category L*, N*, and the property White_Space, of Unicode 14.
bool isLetter(uint32_t c);
bool isNumber(uint32_t c);
bool isSpace(uint32_t c);

}  // namespace gptc
