#include "ir/words.h"

#include "llvm/ADT/StringRef.h"

#include <fmt/format.h>

#include <algorithm>

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

std::string nearestWord(const std::string &word, const std::vector<std::string> &known) {
  std::string best;
  unsigned bestDistance = std::max<unsigned>(2, word.size() / 3) + 1;
  for (const std::string &k : known) {
    unsigned d = llvm::StringRef(word).edit_distance(k, true, bestDistance);
    if (d < bestDistance) {
      bestDistance = d;
      best = k;
    }
  }
  return best;
}

}  // namespace gptc
