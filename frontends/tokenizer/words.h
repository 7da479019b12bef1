// Splits text into words by the patterns of well-known tokenizers, by hand: several times as fast as a regular
// expression, and equal to Oniguruma's matches of it (tests/unit/frontends/words_test.cpp).
#pragma once

#include <cstddef>
#include <string_view>

namespace gptc {

/// Length in bytes of the first word of a non-empty text. Bytes that are no UTF-8 count as punctuation.
using FirstWord = size_t (*)(std::string_view text);

/// GPT-2's:
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t firstWord(std::string_view text);

/// The splitter of a pattern whose matches cover any text; null if it has none by hand. Known are GPT-2's, and those of
/// cl100k, Llama 3 and Qwen 2 as their files write them.
FirstWord wordsOfPattern(std::string_view pattern);

/// Whether the words of a pattern stay the same if the text is cut between a letter and a line feed, which is known of
/// some patterns that have no splitter too.
bool cutsBeforeLineFeed(std::string_view pattern);

}  // namespace gptc
