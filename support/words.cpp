#include "support/words.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

namespace gptc {

std::string quotedList(const std::vector<std::string> &words, const char *last) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i)
      text += i + 1 == words.size() ? fmt::format(" {} ", last) : ", ";
    text += fmt::format("\"{}\"", words[i]);
  }
  return text;
}

std::string quotedSome(const std::vector<std::string> &words) {
  constexpr size_t most = 12;
  if (words.size() <= most)
    return quotedList(words);
  const std::vector<std::string> first(words.begin(), words.begin() + most);
  return fmt::format("\"{}\" and {} more", fmt::join(first, "\", \""), words.size() - most);
}

std::string nearestWord(const std::string &word, const std::vector<std::string> &known) {
  auto letters = [](std::string w) {
    std::sort(w.begin(), w.end());
    return w;
  };
  // In a short word one edit is allowed, and a swap of two letters counts as one.
  const bool brief = word.size() < 6;
  const unsigned most = word.size() < 3 ? 0 : brief ? 1 : std::max<unsigned>(2, word.size() / 3);
  std::string best;
  unsigned bestDistance = most + 1;
  for (const std::string &k : known) {
    unsigned d = llvm::StringRef(word).edit_distance(k, true, 2 + most);
    if (brief && d == 2 && letters(word) == letters(k))
      d = 1;
    if (d < bestDistance) {
      bestDistance = d;
      best = k;
    }
  }
  return best;
}

std::string withoutPlaces(std::string text) {
  for (const auto &[begin, end] : {std::pair{"internal error at ", ": "}, {"`", "` failed: "}})
    for (size_t from; (from = text.find(begin)) != std::string::npos;) {
      const size_t to = text.find(end, from + 1);
      if (to == std::string::npos)
        break;
      text.erase(from, to + llvm::StringRef(end).size() - from);
    }
  return text;
}

std::optional<int64_t> parseBytes(llvm::StringRef text) {
  text = text.trim();
  size_t digits = text.find_first_not_of("0123456789.");
  double n;
  if (digits == 0 || text.take_front(digits).getAsDouble(n))
    return std::nullopt;
  static const std::pair<const char *, double> units[] = {
      {"", 1},     {"B", 1},    {"KiB", 1024}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
      {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9},   {"TiB", 0x1p40},  {"TB", 1e12}};
  llvm::StringRef unit = digits == llvm::StringRef::npos ? "" : text.drop_front(digits).ltrim();
  for (auto &[name, bytes] : units)
    if (unit == name && n * bytes >= 1 && n * bytes < 0x1p62)
      return int64_t(n * bytes);
  return std::nullopt;
}

std::optional<double> parseTokens(llvm::StringRef text) {
  static constexpr std::pair<char, double> suffixes[] = {{'k', 1e3}, {'m', 1e6}, {'b', 1e9}, {'t', 1e12}};
  text = text.trim();
  double factor = 1, n;
  for (const auto &[letter, times] : suffixes)
    if (!text.empty() && llvm::toLower(text.back()) == letter)
      factor = times;
  llvm::StringRef number = factor > 1 ? text.drop_back().rtrim() : text;
  // Digits only, so that no word of the C library ("inf", "0x1p3") counts as a number.
  if (number.empty() || number.find_first_not_of("0123456789.eE+") != llvm::StringRef::npos || number.getAsDouble(n))
    return std::nullopt;
  n *= factor;
  return n >= 1 && n <= 1e18 ? std::optional<double>(n) : std::nullopt;
}

std::optional<int64_t> parseWholeTokens(llvm::StringRef text, int64_t least, int64_t most) {
  int64_t whole = 0;
  text = text.trim();
  if (text.empty() || text.find_first_not_of("0123456789") != llvm::StringRef::npos) {
    const double n = parseTokens(text).value_or(0.5);
    whole = std::llround(n);
    if (std::abs(n - double(whole)) > 1e-9 * n)  // 1.001k is not quite that in binary
      return std::nullopt;
  } else if (text.getAsInteger(10, whole)) {
    return std::nullopt;
  }
  return whole >= least && whole <= most ? std::optional(whole) : std::nullopt;
}

std::string formatBytes(double bytes) {
  const double n = std::abs(bytes);
  return n < 0x1p10        ? fmt::format("{:.0f} B", bytes)
         : n < 10 * 0x1p20 ? fmt::format("{:.1f} KiB", bytes / 0x1p10)
         : n < 10 * 0x1p30 ? fmt::format("{:.1f} MiB", bytes / 0x1p20)
                           : fmt::format("{:.1f} GiB", bytes / 0x1p30);
}

std::string timeNow() {
  timespec t{};
  ::clock_gettime(CLOCK_REALTIME, &t);
  std::tm utc{};
  ::gmtime_r(&t.tv_sec, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec, t.tv_nsec / 1000000);
}

}  // namespace gptc
