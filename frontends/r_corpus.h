// Extracts text from R's lazy-load data files without R: Debian's package r-cran-janeaustenr contains six novels in
// this form.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gptc {

/// An .rdb file is a sequence of records: length of the content (u32 big-endian), then a zlib stream of an object in
/// R's XDR serialization (R Internals, section 1.8). Each character vector becomes a file of lines in `outDir`, named
/// after its first non-empty line: "EMMA" -> emma.txt. Returns the files' names and sizes in bytes. Throws UserErrors
/// FileMissing, DataInvalid.
std::vector<std::pair<std::string, int64_t>> extractRTexts(const std::string &rdb, const std::string &outDir);

}  // namespace gptc
