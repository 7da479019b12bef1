// Words for messages.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// `"a", "b" and "c"`.
std::string quotedList(const std::vector<std::string> &words, const char *last = "and");
/// The word of `known` that is nearest to `word`, or "" where none is near enough to be a slip: two changes, or one in
/// three letters of a long word; one change, or two letters swapped, in a word of 3 to 5; none in a shorter one.
std::string nearestWord(const std::string &word, const std::vector<std::string> &known);

/// The message of an InternalError without our files and conditions, for one who wrote what led to it: these help him
/// with nothing.
std::string withoutPlaces(std::string text);

/// "8GiB", "500 MB" or "1000": a positive number with an optional unit, B, KB, MB, GB, TB, KiB, MiB, GiB or TiB.
/// nullopt for anything else.
std::optional<int64_t> parseBytes(llvm::StringRef text);
/// "512 B", "28.0 KiB", "-12.5 MiB", "12.0 GiB": KiB from 1 KiB on, MiB from 10 MiB on, GiB from 10 GiB on.
std::string formatBytes(double bytes);

}  // namespace gptc
