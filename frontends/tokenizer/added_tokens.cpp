#include "frontends/tokenizer/added_tokens.h"

#include "frontends/tokenizer/utf8.h"

#include <algorithm>
#include <cstring>
#include <utf8proc.h>

namespace gptc {
namespace {

/// Unicode's word characters: Alphabetic, marks, decimal digits, connectors, joiners.
bool isWordCharacter(uint32_t c) {
  if (c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
      (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189))
    return true;
  switch (utf8proc_category(utf8proc_int32_t(c))) {
  case UTF8PROC_CATEGORY_LU:
  case UTF8PROC_CATEGORY_LL:
  case UTF8PROC_CATEGORY_LT:
  case UTF8PROC_CATEGORY_LM:
  case UTF8PROC_CATEGORY_LO:
  case UTF8PROC_CATEGORY_MN:
  case UTF8PROC_CATEGORY_MC:
  case UTF8PROC_CATEGORY_ME:
  case UTF8PROC_CATEGORY_ND:
  case UTF8PROC_CATEGORY_NL:
  case UTF8PROC_CATEGORY_PC:
    return true;
  default:
    return false;
  }
}

/// Start of the last character of a text that is not empty.
size_t lastCharacter(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (uint8_t(text[at]) & 0xc0) == 0x80)
    --at;
  return at;
}

bool isSpaceAt(std::string_view text, size_t at) {
  return charClass(firstCodePoint(text.substr(at)).value) == CharClass::space;
}

}  // namespace

void AddedTokens::add(AddedToken token, std::string_view needle) {
  if (needle.empty())
    return;
  if (needle.find_first_of("\n ", 1) != std::string_view::npos || (token.stripRight && isAsciiLetter(needle.back())))
    onlyLocal = false;
  // A normalizer may have made such a space.
  for (size_t at = 0; (at = needle.find(kSpaceMark, at + 1)) != std::string_view::npos;)
    onlyLocal = onlyLocal && !isAsciiLetter(needle[at - 1]);
  trie.add(needle, int32_t(tokens.size()));
  if (firstBytes.find(needle[0]) == std::string::npos)
    firstBytes += needle[0];
  tokens.push_back(std::move(token));
}

bool touches(const ByteRanges &ranges, size_t begin, size_t end) {
  const auto it =
      std::upper_bound(ranges.begin(), ranges.end(), begin, [](size_t at, auto &r) { return at < r.second; });
  return it != ranges.end() && it->first < end;
}

int64_t AddedTokens::split(std::string_view text, bool parseSpecial, const ByteRanges &foreign,
                           std::vector<Section> &out) const {
  int64_t found = 0;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (firstBytes.size() == 1) {
      const void *next = std::memchr(text.data() + at, firstBytes[0], text.size() - at);
      if (!next)
        break;
      at = size_t(static_cast<const char *>(next) - text.data());
    } else if (!trie.beginsWith(uint8_t(text[at]))) {
      ++at;
      continue;
    }
    size_t length = 0;
    int32_t which = -1;
    trie.prefixes(text.substr(at), [&](size_t n, int32_t i) {
      length = n;
      which = i;
    });
    if (which < 0) {
      ++at;
      continue;
    }
    const AddedToken &token = tokens[which];
    size_t begin = at, end = at + length;
    at = end;
    if (token.special) {
      ++found;
      if (!parseSpecial || touches(foreign, begin, end))
        continue;
    }
    if (token.singleWord &&
        ((begin > 0 && isWordCharacter(firstCodePoint(text.substr(lastCharacter(text.substr(0, begin)))).value)) ||
         (end < text.size() && isWordCharacter(firstCodePoint(text.substr(end)).value))))
      continue;
    if (token.stripLeft)
      begin = std::max(begin, done);
    while (token.stripLeft && begin > done)
      if (const size_t last = lastCharacter(text.substr(0, begin)); last >= done && isSpaceAt(text, last))
        begin = last;
      else
        break;
    while (token.stripRight && end < text.size() && isSpaceAt(text, end))
      end += firstCodePoint(text.substr(end)).length;
    // Nothing is left of a match in space that an earlier token took, if it takes the space before it too.
    if (token.stripLeft && begin >= end)
      continue;
    if (done < begin)
      out.push_back({text.substr(done, begin - done)});
    out.push_back({text.substr(begin, end - begin), token.id});
    done = end;
    // Any other match in such space counts, as in `tokenizers`, which finds all before it strips.
  }
  if (done < text.size())
    out.push_back({text.substr(done)});
  return found;
}

}  // namespace gptc
