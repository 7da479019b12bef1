// A cache of kernels' object code on disk. The process runs the code that it reads, so only the user may be able to
// write there. A lost or damaged entry only costs a recompilation.
#pragma once

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// Opens a folder whose content may be run and returns its descriptor. The folder must not be a link, must belong to
/// this user and be closed to all others, and nobody but root may be able to replace it or a folder above it. Otherwise
/// returns -1, with the reason in `why` and in errno: ENOENT if there is no such folder, EACCES if it is not private.
/// All checks are made on opened descriptors, because another process may rename folders at any moment.
int openPrivateFolder(const std::string &dir, std::string &why);

class ObjectCache {
public:
  /// Opens or makes the folder (mode 0700). "" means no cache. If the folder cannot be made or openPrivateFolder
  /// refuses it, the cache is off, with a warning on stderr.
  explicit ObjectCache(const std::string &dir);
  /// Opens or makes the folder as the constructor does, without a warning. False, with the reason in `why`, on failure.
  static bool make(const std::string &dir, std::string &why);
  ~ObjectCache();
  ObjectCache(const ObjectCache &) = delete;
  bool enabled() const { return fd >= 0; }

  /// The entry stored under `key` (a file name); nullopt if it is missing or its checksum of key and data is wrong.
  std::optional<std::vector<char>> read(const std::string &key) const;
  /// Stores an entry; failures are ignored. Atomic: readers see a whole entry or none. Safe to call from several
  /// threads and processes.
  void write(const std::string &key, llvm::ArrayRef<char> data) const;
  /// Writes a text for people to read, atomically, to the cache's folder, or if the cache is off to a new folder (mode
  /// 0700) of the temporary directory. Replaces an older text of that name. Returns its path, or "" with `why`.
  std::string keep(const std::string &name, llvm::StringRef text, std::string &why) const;

private:
  int fd = -1;
  std::string dir;
};

/// The BLAKE3 hash of all pieces in lower-case hex. Each piece is preceded by its length.
std::string contentHash(llvm::ArrayRef<llvm::ArrayRef<char>> pieces);

}  // namespace gptc
