// Lists, names and sizes in messages.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// `"a", "b" and "c"`.
std::string quotedList(const std::vector<std::string> &words, const char *last = "and");
/// The same of a dozen words at most: `"a", "b", ... and 7 more`.
std::string quotedSome(const std::vector<std::string> &words);
/// The word of `known` nearest to `word`; "" if none is near enough to be a typing error. Allowed edits: none in a word
/// of 1 or 2 letters; one, or a swap of two letters, in one of 3 to 5; in a longer one 2, or a third of its letters if
/// more.
std::string nearestWord(const std::string &word, const std::vector<std::string> &known);

/// The message of an InternalError without our file names and conditions, for users whose input caused it.
std::string withoutPlaces(std::string text);

/// "8GiB", "500 MB" or "1000": a number of at least one byte, with an optional unit B, KB, MB, GB, TB, KiB, MiB, GiB or
/// TiB. nullopt for anything else.
std::optional<int64_t> parseBytes(llvm::StringRef text);
/// "100B", "1.5 T", "250m" or "300e9": a number of tokens from 1 to 1e18, with an optional K, M, B or T (thousand,
/// million, 10^9, 10^12) in either case. nullopt for anything else.
std::optional<double> parseTokens(llvm::StringRef text);
/// The same for a whole number from `least` to `most`; digits alone are exact and may be 0.
std::optional<int64_t> parseWholeTokens(llvm::StringRef text, int64_t least, int64_t most);
/// "512 B", "28.0 KiB", "-12.5 MiB", "12.0 GiB". KiB from 1 KiB on, MiB from 10 MiB on, GiB from 10 GiB on.
std::string formatBytes(double bytes);

/// The time, UTC: "2026-03-01T09:30:05.123Z".
std::string timeNow();

}  // namespace gptc
