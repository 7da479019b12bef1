#include "frontends/chat/marked_text.h"

#include <algorithm>

namespace gptc {

namespace {

bool beginsCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

}  // namespace

MarkedText::MarkedText(std::string bytes, bool isForeign) : all(std::move(bytes)) {
  if (isForeign && !all.empty())
    ranges.emplace_back(0, all.size());
}

MarkedText MarkedText::part(size_t begin, size_t end) const {
  MarkedText out(all.substr(begin, end - begin));
  const auto first =
      std::upper_bound(ranges.begin(), ranges.end(), begin, [](size_t at, const Range &r) { return at < r.second; });
  for (auto it = first; it != ranges.end() && it->first < end; ++it)
    out.ranges.emplace_back(std::max(it->first, begin) - begin, std::min(it->second, end) - begin);
  return out;
}

void MarkedText::append(const MarkedText &other) {
  const size_t at = all.size();
  all += other.all;
  for (const auto &[b, e] : other.ranges)
    if (!ranges.empty() && ranges.back().second == at + b)
      ranges.back().second = at + e;
    else
      ranges.emplace_back(at + b, at + e);
}

MarkedText MarkedText::mapped(const std::function<std::string(std::string_view)> &piece) const {
  const std::string_view bytes = all;
  MarkedText out;
  size_t at = 0;
  for (const auto &[begin, end] : ranges) {
    out.append(MarkedText(piece(bytes.substr(at, begin - at))));
    out.append(MarkedText(piece(bytes.substr(begin, end - begin)), true));
    at = end;
  }
  out.append(MarkedText(piece(bytes.substr(at))));
  return out;
}

size_t countCharacters(std::string_view text) {
  return size_t(std::count_if(text.begin(), text.end(), beginsCharacter));
}

size_t offsetOfCharacter(std::string_view text, size_t character) {
  for (size_t i = 0; i < text.size(); ++i)
    if (beginsCharacter(text[i]) && character-- == 0)
      return i;
  return text.size();
}

}  // namespace gptc
