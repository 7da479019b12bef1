#include "frontends/tokenizer/utf8.h"

#include "support/diagnostics.h"

#include <algorithm>

namespace gptc {

namespace {

bool continues(char c) { return (uint8_t(c) & 0xc0) == 0x80; }

/// Length in bytes that a lead byte announces; 0 if it is none.
unsigned announced(uint8_t lead) {
  return lead < 0x80                   ? 1
         : lead >= 0xc2 && lead < 0xe0 ? 2
         : lead >= 0xe0 && lead < 0xf0 ? 3
         : lead >= 0xf0 && lead < 0xf5 ? 4
                                       : 0;
}

}  // namespace

CodePoint firstCodePoint(std::string_view text) {
  constexpr CodePoint invalid{0xfffd, 1, false};
  const uint8_t lead = text[0];
  const unsigned n = announced(lead);
  if (n == 1)
    return {lead, 1, true};
  if (n == 0 || text.size() < n)
    return invalid;
  uint32_t value = lead & (0x7f >> n);
  for (unsigned i = 1; i < n; ++i) {
    if (!continues(text[i]))
      return invalid;
    value = value << 6 | (uint8_t(text[i]) & 0x3f);
  }
  constexpr uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < least[n] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
    return invalid;
  return {value, n, true};
}

void appendUtf8(std::string &out, uint32_t c) {
  if (c < 0x80) {
    out += char(c);
    return;
  }
  const unsigned n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  out += char((0xf00 >> n) | c >> 6 * (n - 1));
  for (int shift = 6 * (int(n) - 2); shift >= 0; shift -= 6)
    out += char(0x80 | (c >> shift & 0x3f));
}

size_t findInvalidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (uint8_t(text[i]) < 0x80) {
      ++i;
      continue;
    }
    CodePoint c = firstCodePoint(text.substr(i));
    if (!c.valid)
      return i;
    i += c.length;
  }
  return std::string_view::npos;
}

int64_t countCodePoints(std::string_view text) {
  int64_t n = 0;
  for (char c : text)
    n += !continues(c);
  return n;
}

size_t bytesOfCodePoints(std::string_view text, int64_t count) {
  size_t i = 0;
  for (; i < text.size(); ++i)
    if (!continues(text[i]) && count-- == 0)
      break;
  return i;
}

void requireUtf8(std::string_view text, const std::string &what) {
  if (const size_t at = findInvalidUtf8(text); at != std::string_view::npos)
    throw UserError(ErrorCode::DataInvalid,
                    fmt::format("{} is no UTF-8 text: byte {:#04x} at offset {} (line {})", what, uint8_t(text[at]), at,
                                1 + std::count(text.begin(), text.begin() + int64_t(at), '\n')),
                    "convert it, for example `iconv -f latin1 -t utf8`, or use --tokenizer byte");
}

bool incompleteCodePoint(std::string_view text) {
  if (text.empty() || text.size() >= announced(text[0]))
    return false;
  for (char c : text.substr(1))
    if (!continues(c))
      return false;
  return true;
}

}  // namespace gptc
