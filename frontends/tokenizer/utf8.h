// UTF-8, and the Unicode classes that patterns of words use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gptc {

struct CodePoint {
  uint32_t value;   // U+FFFD if invalid
  unsigned length;  // bytes consumed; 1 if invalid
  bool valid;
};
/// The first character of a non-empty text. Overlong forms, surrogates and values above U+10FFFF are invalid.
CodePoint firstCodePoint(std::string_view text);
/// Appends a character.
void appendUtf8(std::string &out, uint32_t value);
/// Offset of the first invalid byte; npos if there is none.
size_t findInvalidUtf8(std::string_view text);
/// Number of characters in a valid text.
int64_t countCodePoints(std::string_view text);
/// Number of bytes in the first `count` characters of a valid text.
size_t bytesOfCodePoints(std::string_view text, int64_t count);
/// Whether a text is one character and no more; an invalid byte counts as one.
inline bool isOneCodePoint(std::string_view text) {
  return !text.empty() && firstCodePoint(text).length == text.size();
}
/// Throws UserError(DataInvalid) with place and line if a text is no UTF-8; `what` names it.
void requireUtf8(std::string_view text, const std::string &what);
/// Whether `text` may be the beginning of a character: a lead byte with too few continuation bytes.
bool incompleteCodePoint(std::string_view text);

/// What SentencePiece writes for a space.
inline constexpr std::string_view kSpaceMark = "\u2581";

inline bool isAsciiLetter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

/// General categories L* and N*, and the property White_Space, of Unicode 14.
enum class CharClass : uint8_t { other, letter, number, space };
CharClass charClass(uint32_t c);

}  // namespace gptc
