// Files: opened only if they are regular, read whole or in pieces, and written so that they appear whole or not at all.
//
// Errors are UserErrors: FileMissing for what cannot be opened or read, DiskFull for ENOSPC, EDQUOT and EFBIG,
// Unwritable for every other failed write. readTextFile and openRegularFile return the reason instead.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gptc {

// ---- reading -------------------------------------------------------------------------------------------------------

/// A file opened to be read, whose descriptor is the caller's to close; or fd -1, and what is in the way.
struct OpenedFile {
  int fd = -1;
  int64_t size = 0;  // 0 for files of the kernel, as in /proc
  int error = 0;     // of errno
  std::string why;
};

/// Opens a regular file, or a link to one; every program opens what it is to read by it. Nothing else is opened and
/// nothing waits: a pipe may never get a writer, and a device may never end.
OpenedFile openRegularFile(const std::string &path);

/// What tells one content of a file from another without reading it. Times are nanoseconds.
struct FileStamp {
  uint64_t device = 0, inode = 0;
  int64_t size = 0, modified = 0, changed = 0;
  bool operator==(const FileStamp &) const = default;
};

/// A file read in pieces at any place, for data that passes through once and should not count as resident memory.
class InputFile {
public:
  /// Throws UserError(FileMissing) for what is no regular file, saying what it was wanted for.
  InputFile(const std::string &path, llvm::StringRef wantedAs);
  ~InputFile();
  InputFile(const InputFile &) = delete;
  size_t size() const { return length; }
  /// As it is now.
  FileStamp stamp() const;
  /// False where the file ends before, or cannot be read.
  bool read(size_t offset, void *to, size_t bytes) const;
  /// BLAKE3 of the whole content.
  std::string hash() const;

private:
  int fd;
  size_t length = 0;
};

/// The whole content of a regular file, or why it cannot be had: unreadable, or longer than `limit`.
struct FileText {
  bool ok = false;
  std::string text;
  std::string why;
};
FileText readTextFile(const std::string &path, size_t limit);
/// From where an open one stands; it stays open.
FileText readText(int fd, size_t limit);

/// Whole content of a file that a user names. Throws UserError(FileMissing) naming `what` ("token file", "corpus", ...)
/// if it is missing, unreadable or no regular file; the help names a file of nearly the same name beside it.
std::string readInput(const std::string &file, const std::string &what);

// ---- writing -------------------------------------------------------------------------------------------------------

/// Writes to a temporary name in the same folder, syncs, renames and syncs the folder.
void writeFileAtomically(const std::string &file, std::string_view content);

/// A file being written: buffered by the caller, fsynced on close. An unfinished one is left to whoever removes its
/// folder.
class SyncedFile {
public:
  explicit SyncedFile(const std::string &path);
  ~SyncedFile();
  SyncedFile(const SyncedFile &) = delete;
  void write(const void *data, size_t bytes);
  /// fsync and close.
  void finish();

private:
  std::string path;
  int fd = -1;
};

/// For logs, which grow line by line: opens at the end, creating the file; and writes a piece at once.
int openAppending(const std::string &path);
void appendAll(int fd, const std::string &path, llvm::StringRef text);

/// Renames a file over another.
void replaceFile(const std::string &from, const std::string &to);

// ---- folders -------------------------------------------------------------------------------------------------------

/// Makes a folder and those above it, for what a user may make again. Throws also if a file stands there.
void makeFolder(const std::string &folder);
/// Makes a folder and those above it, and syncs the folders that hold new ones.
void makeDirs(const std::string &path);
void syncDir(const std::string &path);
/// Removes a folder and what is in it; errors are ignored (used to clean up).
void removeTree(const std::string &path) noexcept;

/// A folder that appears under its final name complete, or not at all: files are written into a temporary sibling, each
/// fsynced, then the folder is fsynced, renamed and its parent fsynced. Unless commit() was reached, the destructor
/// removes it.
class AtomicDir {
public:
  /// Removes what a killed earlier attempt left behind.
  explicit AtomicDir(std::string finalPath);
  ~AtomicDir();
  AtomicDir(const AtomicDir &) = delete;
  const std::string &path() const { return temporary; }
  /// The same of a folder that another process writes together with this one.
  static std::string temporaryOf(const std::string &finalPath);
  std::string file(llvm::StringRef name) const { return temporary + "/" + name.str(); }
  /// An existing folder of that name is exchanged for the new one in one step and then removed.
  void commit();

private:
  std::string final, temporary;
};

// ---- contents and names --------------------------------------------------------------------------------------------

/// BLAKE3 as 64 hexadecimal digits.
std::string blake3(const void *data, size_t bytes);
inline std::string blake3(llvm::StringRef text) { return blake3(text.data(), text.size()); }

/// BLAKE3 of pieces.
class Hasher {
public:
  Hasher();
  ~Hasher();
  void update(const void *data, size_t bytes);
  std::string finish();

private:
  struct Impl;
  Impl *impl;
};

/// Path made absolute against the current folder and cleaned of "." and "..".
std::string absolutePath(const std::string &path);
/// `path` as seen from the folder in which `from` stands: absolute paths stay. An empty path stays empty.
std::string resolveBeside(const std::string &path, const std::string &from);
/// Whether what is written at `path`, which need not be there yet, lies in `folder`, wherever links lead. Not where
/// that cannot be told.
bool liesWithin(const std::string &path, const std::string &folder);
/// A link below `path` that leads out of `folder`; "" where there is none.
std::string linkOutOf(const std::string &path, const std::string &folder);

}  // namespace gptc
