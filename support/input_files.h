// Small file helpers of the front end: whole-file reads with coded errors, and writes that appear whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace gptc {

/// Whole content of a file. Throws UserError(FileMissing) naming `what` ("token file", "corpus", ...) where it is
/// missing, unreadable or no regular file.
std::string readInput(const std::string &file, const std::string &what);

/// Writes to a temporary name in the same folder, syncs, renames and syncs the folder. Throws UserError(Unwritable or
/// DiskFull).
void writeFileAtomically(const std::string &file, std::string_view content);

/// Makes a folder and its parents. Throws UserError(Unwritable) with the reason.
void makeFolder(const std::string &folder);

/// `path` as seen from the folder in which `from` stands: absolute paths stay. An empty path stays empty.
std::string resolveBeside(const std::string &path, const std::string &from);

}  // namespace gptc
