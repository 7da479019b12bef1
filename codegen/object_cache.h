// Object code of kernels on disk, private to the user: what is in there runs, so nobody else may have written it. Loss
// or damage of an entry costs a recompilation and nothing else.
#pragma once

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// Opens a folder whose content may be run: no link, of this user, closed to all others, and below folders in which
/// nobody else but root can put another one in its place. Or -1, with the reason in `why` and in errno: ENOENT where
/// there is none, EACCES where it is not private. It is the opened folder that is looked at, and those that were gone
/// through: their names may stand for others a moment later.
int openPrivateFolder(const std::string &dir, std::string &why);

class ObjectCache {
public:
  /// Opens or makes the folder (0700). "" means no cache. A folder that others own, may enter or may replace is refused
  /// with a warning on stderr, and so is one that cannot be made; then the cache is off.
  explicit ObjectCache(const std::string &dir);
  /// What that does, without a warning: whether there is such a folder, or why not.
  static bool make(const std::string &dir, std::string &why);
  ~ObjectCache();
  ObjectCache(const ObjectCache &) = delete;
  bool enabled() const { return fd >= 0; }

  /// The entry stored under `key` (a file name), if it is there and its checksum, which covers the key, holds.
  std::optional<std::vector<char>> read(const std::string &key) const;
  /// Best effort, atomic: readers see a whole entry or none. Safe to call from several threads and processes.
  void write(const std::string &key, llvm::ArrayRef<char> data) const;
  /// Writes a text for people to look into, replacing an older one of that name, to the cache's folder; where there is
  /// none, to a new folder of this user's (0700) among temporary files. Whole or not at all. Its path; or "", and why.
  std::string keep(const std::string &name, llvm::StringRef text, std::string &why) const;

private:
  int fd = -1;
  std::string dir;
};

/// BLAKE3 of the pieces, each preceded by its length, in hex.
std::string contentHash(llvm::ArrayRef<llvm::ArrayRef<char>> pieces);

}  // namespace gptc
