#include "runtime/launch/host_list.h"

#include "llvm/ADT/StringExtras.h"

#include <fmt/format.h>

namespace gptc {
namespace {

constexpr size_t kMostHosts = 1 << 20;

/// Splits at commas outside brackets; nullopt if brackets do not match.
std::optional<std::vector<llvm::StringRef>> cut(llvm::StringRef text) {
  std::vector<llvm::StringRef> parts;
  bool inside = false;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == ']') {
      if (inside == (text[i] == '['))
        return std::nullopt;
      inside = !inside;
    } else if (text[i] == ',' && !inside) {
      parts.push_back(text.slice(begin, i));
      begin = i + 1;
    }
  }
  parts.push_back(text.substr(begin));
  return inside ? std::nullopt : std::optional(parts);
}

/// Expands "01-03,7".
std::optional<std::vector<std::string>> numbers(llvm::StringRef ranges) {
  std::vector<std::string> all;
  for (llvm::StringRef rest = ranges;;) {
    auto [range, after] = rest.split(',');
    auto [from, to] = range.split('-');
    const bool single = !range.contains('-');
    const std::optional<long> first = parseNumber(from.str(), 0, 999'999'999),
                              last = single ? first : parseNumber(to.str(), 0, 999'999'999);
    if (!first || !last || *last < *first || size_t(*last - *first) >= kMostHosts - all.size())
      return std::nullopt;
    for (long n = *first; n <= *last; ++n)
      all.push_back(fmt::format("{:0{}}", n, from.size()));
    if (!rest.contains(','))
      return all;
    rest = after;
  }
}

bool isHostName(llvm::StringRef name) {
  // Also allows IPv6 addresses, and a user before @ for ssh.
  return !name.empty() && name[0] != '-' && name.size() <= 255 && name.find_if_not([](char c) {
    return llvm::isAlnum(c) || c == '.' || c == '-' || c == '_' || c == ':' || c == '@';
  }) == llvm::StringRef::npos;
}

}  // namespace

std::optional<long> parseNumber(const std::string &text, long least, long most) {
  long value = 0;
  if (text.empty() || !llvm::isDigit(text[0]) || llvm::StringRef(text).getAsInteger(10, value) || value < least ||
      value > most)
    return std::nullopt;
  return value;
}

std::optional<std::vector<std::string>> parseHostList(const std::string &text) {
  auto parts = cut(text);
  if (!parts)
    return std::nullopt;
  std::vector<std::string> hosts;
  for (llvm::StringRef part : *parts) {
    std::vector<std::string> names = {""};
    while (!part.empty()) {
      auto [plain, rest] = part.split('[');
      const size_t end = rest.find(']');
      std::vector<std::string> endings = {""};
      if (end != llvm::StringRef::npos) {
        auto found = numbers(rest.substr(0, end));
        if (!found)
          return std::nullopt;
        endings = std::move(*found);
      }
      if (endings.size() * names.size() > kMostHosts)
        return std::nullopt;
      std::vector<std::string> longer;
      for (const std::string &name : names)
        for (const std::string &ending : endings)
          longer.push_back(name + plain.str() + ending);
      names = std::move(longer);
      part = end == llvm::StringRef::npos ? llvm::StringRef() : rest.substr(end + 1);
    }
    for (std::string &name : names) {
      if (!isHostName(name) || hosts.size() >= kMostHosts)
        return std::nullopt;
      hosts.push_back(std::move(name));
    }
  }
  return hosts;
}

std::optional<std::vector<int>> parseTasksPerNode(const std::string &text) {
  std::vector<int> counts;
  for (llvm::StringRef rest = text;;) {
    auto [part, after] = rest.split(',');
    auto [count, times] = part.split("(x");
    long repeat = 1;
    if (part.contains('(')) {
      const std::optional<long> n =
          times.consume_back(")") ? parseNumber(times.str(), 1, kMostHosts) : std::optional<long>();
      if (!n)
        return std::nullopt;
      repeat = *n;
    }
    const std::optional<long> n = parseNumber(count.str(), 1, 1 << 20);
    if (!n || counts.size() + repeat > kMostHosts)
      return std::nullopt;
    counts.insert(counts.end(), repeat, int(*n));
    if (!rest.contains(','))
      return counts;
    rest = after;
  }
}

}  // namespace gptc
