// Opening regular files only, reading them whole or in pieces, and writing files that appear complete or not at all.
//
// Functions throw UserError: FileMissing if a file cannot be opened or read, DiskFull for ENOSPC, EDQUOT and EFBIG,
// Unwritable for every other failed write. readTextFile and openRegularFile return the reason instead.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gptc {

// ---- reading -------------------------------------------------------------------------------------------------------

/// A file opened for reading, whose descriptor the caller closes. If opening failed, `fd` is -1 and `why` is the
/// reason.
struct OpenedFile {
  int fd = -1;
  int64_t size = 0;  // bytes; 0 for files of the kernel, as in /proc
  int error = 0;     // errno; EINVAL for a pipe, socket or device
  std::string why;
};

/// Opens a regular file, or a link to one. Every program opens its input files by this function. It refuses anything
/// else without waiting: a pipe may never get a writer, and a device may never end.
OpenedFile openRegularFile(const std::string &path);

/// Identifies the content of a file without reading it. `size` is in bytes, times are in nanoseconds.
struct FileStamp {
  uint64_t device = 0, inode = 0;
  int64_t size = 0, modified = 0, changed = 0;
  bool operator==(const FileStamp &) const = default;
};

/// A file read in pieces at any offset. For data that is read once: unlike a mapping, it does not count as resident
/// memory.
class InputFile {
public:
  /// Throws UserError(FileMissing) if `path` is no readable regular file; the message contains `wantedAs`.
  InputFile(const std::string &path, llvm::StringRef wantedAs);
  ~InputFile();
  InputFile(const InputFile &) = delete;
  size_t size() const { return length; }
  /// The stamp at the time of the call; all zeros if fstat fails.
  FileStamp stamp() const;
  /// Reads exactly `bytes` bytes. False if the file ends earlier or cannot be read.
  bool read(size_t offset, void *to, size_t bytes) const;
  /// BLAKE3 of the whole content, as blake3() gives it; "" if the file cannot be read.
  std::string hash() const;

private:
  int fd;
  size_t length = 0;
};

/// The whole content of a regular file. If it is unreadable or longer than `limit` bytes, `ok` is false and `why` says
/// so.
struct FileText {
  bool ok = false;
  std::string text;
  std::string why;
};
FileText readTextFile(const std::string &path, size_t limit);
/// Reads an open file from its current offset to its end, and leaves it open.
FileText readText(int fd, size_t limit);

/// The whole content of a file that a user names. Throws UserError(FileMissing) if the file is missing, unreadable or
/// not regular. The message names `what` ("token file", "corpus", ...); the help names a file of nearly the same name
/// beside it. Throws UserError(TooLarge) for more than `limit` bytes: a wrong file must not fill the memory.
std::string readInput(const std::string &file, const std::string &what, size_t limit = SIZE_MAX);
constexpr size_t kConfigLimit = size_t(64) << 20;      // of configurations, the largest of which are some kilobytes
constexpr size_t kTokenizerLimit = size_t(256) << 20;  // of tokenizers, the largest of which are some 40 MB

// ---- writing -------------------------------------------------------------------------------------------------------

/// Writes to a temporary file in the same folder, syncs it, renames it to `file` and syncs the folder.
void writeFileAtomically(const std::string &file, std::string_view content);

/// A file being written, without a buffer of its own. If finish() was not called, the destructor closes the file and
/// leaves it: the owner of the folder removes it.
class SyncedFile {
public:
  explicit SyncedFile(const std::string &path);
  ~SyncedFile();
  SyncedFile(const SyncedFile &) = delete;
  void write(const void *data, size_t bytes);
  /// Syncs and closes the file.
  void finish();

private:
  std::string path;
  int fd = -1;
};

/// Writes a file and syncs it, not its folder. For a file that is not read before it, or its folder, has been renamed,
/// or that a command can write again; it may be a device.
void writeSynced(const std::string &file, std::string_view content);

/// For logs, which grow line by line. openAppending opens a file at its end and creates it if it is missing; the caller
/// closes the descriptor. appendAll writes all of `text`; `path` is for its error message.
int openAppending(const std::string &path);
void appendAll(int fd, const std::string &path, llvm::StringRef text);

/// Renames `from` to `to`, which it replaces.
void replaceFile(const std::string &from, const std::string &to);

// ---- folders -------------------------------------------------------------------------------------------------------

/// Makes a folder and its parents, without syncing them. Throws also if `folder` is a file.
void makeFolder(const std::string &folder);
/// Makes a folder and its parents, and syncs every folder that got a new entry.
void makeDirs(const std::string &path);
void syncDir(const std::string &path);
/// Removes a folder and its content. For cleaning up: errors are ignored.
void removeTree(const std::string &path) noexcept;

/// A folder that appears under its final name complete, or not at all. The caller writes files into a temporary sibling
/// and syncs each. commit() syncs the sibling, renames it to the final name and syncs the parent. Without commit(), the
/// destructor removes the sibling.
class AtomicDir {
public:
  /// Makes the temporary folder, and its parents; removes one that a killed process left behind.
  explicit AtomicDir(std::string finalPath);
  ~AtomicDir();
  AtomicDir(const AtomicDir &) = delete;
  const std::string &path() const { return temporary; }
  /// The temporary path for `finalPath`, for other processes that write into the same folder.
  static std::string temporaryOf(const std::string &finalPath);
  std::string file(llvm::StringRef name) const { return temporary + "/" + name.str(); }
  /// Publishes the folder. An existing one of that name is exchanged for it in one step (if the file system can), then
  /// removed.
  void commit();

private:
  std::string final, temporary;
};

// ---- contents and names --------------------------------------------------------------------------------------------

/// BLAKE3 as 64 hexadecimal digits.
std::string blake3(const void *data, size_t bytes);
inline std::string blake3(llvm::StringRef text) { return blake3(text.data(), text.size()); }

/// BLAKE3 of a content given in pieces; finish() returns 64 hexadecimal digits.
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

/// `path` made absolute against the current folder, without "." and "..". Links are not resolved.
std::string absolutePath(const std::string &path);
/// Resolves a relative `path` against the folder that contains `from`. An absolute or empty path stays as it is.
std::string resolveBeside(const std::string &path, const std::string &from);
/// Whether `path`, which need not exist, lies in `folder` after all links are resolved. False if that cannot be
/// determined.
bool liesWithin(const std::string &path, const std::string &folder);
/// The path of a link below `path` that leads out of `folder`; "" if there is none.
std::string linkOutOf(const std::string &path, const std::string &folder);

}  // namespace gptc
