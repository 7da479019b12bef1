// Words for messages.
#pragma once

#include <string>
#include <vector>

namespace gptc {

/// `"a", "b" and "c"`.
std::string quotedList(const std::vector<std::string> &words, const char *last = "and");
/// The word of `known` that is nearest to `word`, or "" where none is near enough to be a slip.
std::string nearestWord(const std::string &word, const std::vector<std::string> &known);

}  // namespace gptc
