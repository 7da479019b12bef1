#include "support/files.h"

#include "support/atomic_file.h"

#include "support/diagnostics.h"
#include "support/words.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/BLAKE3.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace gptc {
namespace fs = std::filesystem;

namespace {

/// Closes a descriptor at the end of the scope.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0)
      ::close(fd);
  }
};

/// Reads `fd` from its current offset to its end into `text`. Returns 0, an errno, or EFBIG for more than `limit`
/// bytes. `expected` is the size that fstat reports, which is 0 for files of the kernel.
int readAll(int fd, size_t expected, size_t limit, std::string &text) {
  text.resize(std::min(expected, limit) + (1 << 12));  // room to see the end of the file without growing
  size_t filled = 0;
  for (;;) {
    if (filled == text.size())
      text.resize(2 * filled);
    const ssize_t n = ::read(fd, text.data() + filled, text.size() - filled);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return errno;
    filled += size_t(n);
    if (filled > limit)
      return EFBIG;
    if (n == 0)
      break;
  }
  text.resize(filled);
  return 0;
}

/// For files that a run writes by itself.
[[noreturn]] void throwWrite(const std::string &path, int error) {
  bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw UserError(full ? ErrorCode::DiskFull : ErrorCode::Unwritable,
                  fmt::format("cannot write {}: {}", path, strerror(error)),
                  full ? "free some space, or choose another folder"
                       : "check that the folder exists and may be written by this user, or choose another one");
}

/// "did you mean NAME?" if the same folder holds a file of nearly that name, else "check the path".
std::string nearName(const std::string &file) {
  const fs::path path(file);
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(path.has_parent_path() ? path.parent_path() : fs::path("."), error), end;
       !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  const std::string near = nearestWord(path.filename().string(), names);
  return near.empty() ? "check the path" : fmt::format("did you mean {}?", (path.parent_path() / near).string());
}

int openForReading(const std::string &path, llvm::StringRef wantedAs, size_t &length) {
  const OpenedFile f = openRegularFile(path);
  if (f.fd < 0)
    throw UserError(ErrorCode::FileMissing, fmt::format("cannot open {} ({}): {}", path, wantedAs.str(), f.why),
                    nearName(path));
  length = f.size;
  return f.fd;
}

[[noreturn]] void failRead(const std::string &file, const std::string &what, int error, const std::string &why) {
  throw UserError(ErrorCode::FileMissing, fmt::format("cannot read {} {}: {}", what, file, why),
                  error == ENOENT   ? nearName(file)
                  : error == EINVAL ? "write what is to be read into a file, and name that"
                                    : "check the path and its permissions");
}

/// For files that a user named on a command line and can have written again.
[[noreturn]] void failWrite(const std::string &file, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    throw UserError(ErrorCode::DiskFull, fmt::format("no space left for {}", file),
                    "free some space or write elsewhere; nothing was replaced");
  throw UserError(ErrorCode::Unwritable, fmt::format("cannot write {}: {}", file, strerror(error)),
                  "choose a folder you may write to");
}

}  // namespace

OpenedFile openRegularFile(const std::string &path) {
  OpenedFile f;
  // stat before open, because opening some devices has effects; fstat after it, because the path may have changed
  // meanwhile.
  struct stat s{};
  int error = ::stat(path.c_str(), &s) == 0 ? 0 : errno;
  if (!error && S_ISREG(s.st_mode)) {
    f.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    error = f.fd < 0 || ::fstat(f.fd, &s) != 0 ? errno : 0;
  }
  if (!error && S_ISREG(s.st_mode)) {
    f.size = s.st_size;
    return f;
  }
  if (f.fd >= 0)
    ::close(f.fd);
  f.fd = -1;
  f.error = error ? error : S_ISDIR(s.st_mode) ? EISDIR : EINVAL;
  f.why = f.error != EINVAL || error ? strerror(f.error)
          : S_ISFIFO(s.st_mode)      ? "it is a pipe, and only files are read"
          : S_ISSOCK(s.st_mode)      ? "it is a socket, and only files are read"
                                     : "it is a device, and only files are read";
  return f;
}

InputFile::InputFile(const std::string &path, llvm::StringRef wantedAs) { fd = openForReading(path, wantedAs, length); }
InputFile::~InputFile() { ::close(fd); }

bool InputFile::read(size_t offset, void *to, size_t bytes) const {
  char *p = static_cast<char *>(to);
  while (bytes) {
    ssize_t n = ::pread(fd, p, std::min(bytes, size_t(1) << 26), offset);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return false;
    p += n;
    offset += n;
    bytes -= n;
  }
  return true;
}

FileStamp InputFile::stamp() const {
  struct stat s{};
  if (::fstat(fd, &s) != 0)
    return {};
  auto ns = [](const struct timespec &t) { return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec; };
  return {s.st_dev, s.st_ino, s.st_size, ns(s.st_mtim), ns(s.st_ctim)};
}

std::string InputFile::hash() const {
  Hasher h;
  std::vector<char> buffer(std::min(length, size_t(4) << 20));
  for (size_t at = 0; at < length; at += buffer.size()) {
    size_t n = std::min(buffer.size(), length - at);
    if (!read(at, buffer.data(), n))
      return "";  // differs from every hash
    h.update(buffer.data(), n);
  }
  return h.finish();
}

FileText readTextFile(const std::string &path, size_t limit) {
  const OpenedFile f = openRegularFile(path);
  const Descriptor in{f.fd};
  return in.fd < 0 ? FileText{false, "", f.why} : readText(in.fd, limit);
}

FileText readText(int fd, size_t limit) {
  FileText r;
  const int error = readAll(fd, 0, limit, r.text);
  r.ok = error == 0;
  if (error)
    r.text.clear(), r.why = error == EFBIG ? fmt::format("longer than {} bytes", limit) : strerror(error);
  return r;
}

std::string readInput(const std::string &file, const std::string &what, size_t limit) {
  const OpenedFile opened = openRegularFile(file);
  const Descriptor in{opened.fd};
  if (in.fd < 0)
    failRead(file, what, opened.error, opened.why);
  std::string content;
  const bool fits = size_t(opened.size) <= limit;  // files of the kernel say 0
  if (const int error = fits ? readAll(in.fd, size_t(opened.size), limit, content) : EFBIG; error == EFBIG)
    throw UserError(ErrorCode::TooLarge, fmt::format("{} {} is longer than {} bytes", what, file, limit),
                    fmt::format("no {} is; check that the path names the right file", what));
  else if (error)
    failRead(file, what, error, strerror(error));
  return content;
}

/// Syncs the folder of `file`, so that a rename in it survives a crash. Errors are ignored: some file systems cannot do
/// it.
static void syncFolderOf(const std::string &file) {
  const std::string folder = fs::path(file).parent_path().string();
  Descriptor in{::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (in.fd >= 0)
    ::fsync(in.fd);
}

void writeFileAtomically(const std::string &file, std::string_view content) {
  AtomicFile out(file);
  out.append(content);
  out.commit();
}

namespace {

/// The process that wrote a temporary file of `path`, by its name; 0 for other names.
pid_t writerOf(llvm::StringRef name, const std::string &path) {
  pid_t pid = 0;
  const bool is = name.consume_front(fs::path(path).filename().string() + ".tmp") && !name.starts_with("0") &&
                  llvm::all_of(name, llvm::isDigit) && !name.getAsInteger(10, pid);
  return is ? pid : 0;
}

/// Whether `path` leads to the open file, which is described by `s`.
bool isAt(int fd, const std::string &path, struct stat &s) {
  struct stat there{};
  return ::fstat(fd, &s) == 0 && ::stat(path.c_str(), &there) == 0 && s.st_dev == there.st_dev &&
         s.st_ino == there.st_ino;
}

/// Seconds since the last write of what is taken for left over.
constexpr time_t kLeftFor = 3600;

/// Removes what killed processes left of `path`. A process of a container or a machine that shares the folder has a
/// number that means nothing here, and holds a lock; some file systems show locks to their own machine only, so what
/// was written lately stays, too.
void removeLeftOvers(const std::string &path) {
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (const pid_t pid = writerOf(it->path().filename().string(), path);
        pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH)
      found.push_back(it->path());
  for (const fs::path &p : found) {
    struct stat s{};
    const Descriptor in{::open(p.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)};
    if (in.fd >= 0 && ::flock(in.fd, LOCK_EX | LOCK_NB) == 0 && isAt(in.fd, p.string(), s) && S_ISREG(s.st_mode) &&
        std::time(nullptr) - s.st_mtime > kLeftFor)
      ::unlink(p.c_str());
  }
}

/// Opens a temporary file and locks it until it is closed. Another process may have opened it before, to remove it or,
/// with the same number in another container, to write it: this waits until it has done so, and then makes a new one.
/// -1, with errno, if it cannot be opened.
int openLocked(const std::string &temporary) {
  for (;;) {
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
      return -1;
    while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }
    struct stat s{};
    const bool isThere = isAt(fd, temporary, s);
    if (isThere && ::ftruncate(fd, 0) == 0)
      return fd;
    const int error = errno;
    ::close(fd);
    if (isThere) {
      errno = error;
      return -1;
    }
  }
}

}  // namespace

AtomicFile::AtomicFile(std::string name) : path(std::move(name)), temporary(fmt::format("{}.tmp{}", path, ::getpid())) {
  // rename would replace a device or a pipe by a file.
  if (struct stat s; ::stat(path.c_str(), &s) == 0 && !S_ISREG(s.st_mode))
    failWrite(path, S_ISDIR(s.st_mode) ? EISDIR : EINVAL);
  removeLeftOvers(path);
  fd = openLocked(temporary);
  if (fd < 0)
    failWrite(path, errno);
}

AtomicFile::~AtomicFile() {
  // Before it is closed: from then on it may be another process's.
  if (!renamed)
    ::unlink(temporary.c_str());
  if (fd >= 0)
    ::close(fd);
}

void AtomicFile::append(std::string_view content) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), std::min(content.size(), size_t(1) << 26));
    if (n < 0 && errno != EINTR)
      failWrite(path, errno);
    content.remove_prefix(size_t(std::max<ssize_t>(n, 0)));
  }
}

void AtomicFile::writeAt(int64_t offset, std::string_view content) {
  while (!content.empty()) {
    const ssize_t n = ::pwrite(fd, content.data(), content.size(), offset);
    if (n < 0 && errno != EINTR)
      failWrite(path, errno);
    content.remove_prefix(size_t(std::max<ssize_t>(n, 0)));
    offset += std::max<ssize_t>(n, 0);
  }
}

void AtomicFile::finish() {
  if (::fsync(fd) != 0)
    failWrite(path, errno);
  // Network file systems report a full disk when a descriptor is closed; the other one holds the lock.
  const int same = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (same < 0 || (::close(same) != 0 && errno != EINTR))
    failWrite(path, errno);
}

void AtomicFile::commit() {
  finish();
  if (::rename(temporary.c_str(), path.c_str()) != 0)
    failWrite(path, errno);
  renamed = true;
  ::close(std::exchange(fd, -1));
  syncFolderOf(path);
}

SyncedFile::SyncedFile(const std::string &path) : path(path) {
  fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0)
    throwWrite(path, errno);
}

SyncedFile::~SyncedFile() {
  if (fd >= 0)
    ::close(fd);
}

void SyncedFile::write(const void *data, size_t bytes) {
  appendAll(fd, path, {static_cast<const char *>(data), bytes});
}

void SyncedFile::finish() {
  if (::fsync(fd) != 0)
    throwWrite(path, errno);
  int closing = fd;
  fd = -1;
  // Network file systems report a full disk here.
  if (::close(closing) != 0 && errno != EINTR)
    throwWrite(path, errno);
}

void writeSynced(const std::string &file, std::string_view content) {
  SyncedFile out(file);
  out.write(content.data(), content.size());
  out.finish();
}

int openAppending(const std::string &path) {
  // O_NONBLOCK: opening a pipe without a reader would wait for one.
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0)
    throwWrite(path, errno);
  return fd;
}

void appendAll(int fd, const std::string &path, llvm::StringRef text) {
  while (!text.empty()) {
    ssize_t n = ::write(fd, text.data(), std::min(text.size(), size_t(1) << 26));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      throwWrite(path, errno);
    text = text.drop_front(n);
  }
}

void replaceFile(const std::string &from, const std::string &to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throwWrite(to, errno);
}

void makeFolder(const std::string &folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder))
    failWrite(folder, error ? error.value() : ENOTDIR);
}

void makeDirs(const std::string &path) {
  // A new folder survives a crash once its parent is synced.
  std::vector<std::string> parents;
  std::error_code e;
  for (fs::path p = fs::path(path).lexically_normal(); !p.empty() && !fs::exists(p, e); p = p.parent_path())
    parents.push_back(p.has_parent_path() ? p.parent_path().string() : ".");
  fs::create_directories(path, e);
  if (e)
    throwWrite(path, e.value());
  for (const std::string &parent : llvm::reverse(parents))
    syncDir(parent);
}

void syncDir(const std::string &path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0)
    throwWrite(path, errno);
  int r = ::fsync(fd), error = errno;
  ::close(fd);
  // Some file systems cannot sync a folder.
  if (r != 0 && error != EINVAL && error != EROFS)
    throwWrite(path, error);
}

void removeTree(const std::string &path) noexcept {
  std::error_code e;
  fs::remove_all(path, e);
}

AtomicDir::AtomicDir(std::string finalPath) : final(std::move(finalPath)) {
  while (final.size() > 1 && final.back() == '/')
    final.pop_back();
  temporary = temporaryOf(final);
  const fs::path p(final);
  if (!p.parent_path().empty())
    makeDirs(p.parent_path().string());
  removeTree(temporary);
  if (::mkdir(temporary.c_str(), 0755) != 0)
    throwWrite(temporary, errno);
}

std::string AtomicDir::temporaryOf(const std::string &finalPath) {
  const fs::path p(finalPath);
  return (p.parent_path() / ("." + p.filename().string() + ".tmp")).string();
}

AtomicDir::~AtomicDir() {
  if (temporary.empty())
    return;
  // Renamed first: a file that another process makes in the folder meanwhile would keep it from being removed.
  const std::string gone = temporary + ".gone";
  removeTree(gone);
  removeTree(::rename(temporary.c_str(), gone.c_str()) == 0 ? gone : temporary);
}

void AtomicDir::commit() {
  syncDir(temporary);
  bool exchanged = false;
  if (::rename(temporary.c_str(), final.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST)
      throwWrite(final, errno);
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) {
      exchanged = true;
    } else {
      // The file system cannot exchange: for a moment there is no folder, but never half of one.
      std::string old = temporary + ".old";
      removeTree(old);
      if (::rename(final.c_str(), old.c_str()) != 0)
        throwWrite(final, errno);
      if (::rename(temporary.c_str(), final.c_str()) != 0) {
        const int error = errno;
        (void)!::rename(old.c_str(), final.c_str());
        throwWrite(final, error);
      }
      removeTree(old);
    }
  }
  std::string parent = fs::path(final).parent_path().string();
  syncDir(parent.empty() ? "." : parent);
  if (exchanged)
    removeTree(temporary);
  temporary.clear();
}

struct Hasher::Impl {
  llvm::BLAKE3 b;
};
Hasher::Hasher() : impl(new Impl) {}
Hasher::~Hasher() { delete impl; }
void Hasher::update(const void *data, size_t bytes) { impl->b.update({static_cast<const uint8_t *>(data), bytes}); }
std::string Hasher::finish() {
  std::string s;
  for (uint8_t byte : impl->b.final<32>())
    s += fmt::format("{:02x}", byte);
  return s;
}

std::string blake3(const void *data, size_t bytes) {
  Hasher h;
  h.update(data, bytes);
  return h.finish();
}

std::string absolutePath(const std::string &path) {
  std::error_code e;
  fs::path p = fs::absolute(path, e);
  return (e ? fs::path(path) : p).lexically_normal().string();
}

std::string resolveBeside(const std::string &path, const std::string &from) {
  if (path.empty() || fs::path(path).is_absolute())
    return path;
  return (fs::path(from).parent_path() / path).lexically_normal().string();
}

bool liesWithin(const std::string &path, const std::string &folder) {
  std::error_code e;
  const fs::path base = fs::canonical(folder, e);
  fs::path there = fs::absolute(path, e), rest;
  // The existing part is resolved as the system does it; the part that does not exist must not contain "..".
  while (!e && !fs::exists(fs::symlink_status(there, e)) && there.has_relative_path()) {
    e.clear();
    if (there.filename() == "..")
      return false;
    rest = there.filename() / rest;
    there = there.parent_path();
  }
  there = e ? fs::path() : fs::canonical(there, e);  // a dangling link is an error here
  return !e && std::mismatch(base.begin(), base.end(), there.begin(), there.end()).first == base.end();
}

std::string linkOutOf(const std::string &path, const std::string &folder) {
  std::error_code e;
  for (fs::recursive_directory_iterator at(path, fs::directory_options::skip_permission_denied, e), end;
       !e && at != end; at.increment(e))
    if (at->is_symlink(e) && !liesWithin(at->path().string(), folder))
      return at->path().string();
  return "";
}

}  // namespace gptc
