#include "codegen/object_cache.h"

#include "support/stderr.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/BLAKE3.h"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <set>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace gptc {

namespace {

constexpr char magic[8] = {'g', 'p', 't', 'c', 'o', 'b', 'j', '2'};
constexpr size_t headerBytes = sizeof magic + 32;

class File {
public:
  explicit File(int fd) : fd(fd) {}
  ~File() { close(); }
  File(const File &) = delete;
  /// False if a write failed after all: some file systems report that only at close.
  bool close() { return fd < 0 || ::close(std::exchange(fd, -1)) == 0; }
  int fd;
};

bool ours(const struct stat &s) { return s.st_uid == geteuid() && (s.st_mode & (S_IRWXG | S_IRWXO)) == 0; }

bool readAll(int fd, char *to, size_t n) {
  while (n) {
    ssize_t got = ::read(fd, to, n);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return false;
    to += got;
    n -= got;
  }
  return true;
}

bool writeAll(int fd, const char *from, size_t n) {
  while (n) {
    ssize_t put = ::write(fd, from, n);
    if (put < 0 && errno == EINTR)
      continue;
    if (put <= 0)
      return false;
    from += put;
    n -= put;
  }
  return true;
}

/// Writes the pieces to a temporary file of the folder and renames it to `name` when it is whole. False, with errno, on
/// failure.
bool writeFile(int folder, const std::string &name, llvm::ArrayRef<llvm::ArrayRef<char>> pieces) {
  static std::atomic<unsigned> counter;
  const std::string temporary = fmt::format(".{}.{}.tmp", getpid(), counter++);
  File f(openat(folder, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (f.fd < 0)
    return false;
  bool whole = true;
  for (llvm::ArrayRef<char> p : pieces)
    whole = whole && writeAll(f.fd, p.data(), p.size());
  whole = whole && f.close() && renameat(folder, temporary.c_str(), folder, name.c_str()) == 0;
  if (!whole) {
    const int error = errno;
    unlinkat(folder, temporary.c_str(), 0);
    errno = error;
  }
  return whole;
}

/// The checksum covers the key too: an object stored under another kernel's key lacks that kernel's functions.
llvm::BLAKE3Result<32> checksum(llvm::StringRef key, llvm::ArrayRef<char> data) {
  llvm::BLAKE3 h;
  const uint64_t n = key.size();
  h.update(llvm::StringRef(reinterpret_cast<const char *>(&n), sizeof n));
  h.update(key);
  h.update(llvm::StringRef(data.data(), data.size()));
  return h.final();
}

/// Why another user could replace an entry of this folder by another folder or a link; "" if nobody can. In a folder
/// with the sticky bit, such as /tmp, only the entry's owner and the folder's owner can replace an entry.
std::string openTo(const struct stat &s) {
  if (s.st_uid != 0 && s.st_uid != geteuid())
    return fmt::format("belongs to another user (number {})", s.st_uid);
  if ((s.st_mode & (S_IWGRP | S_IWOTH)) && !(s.st_mode & S_ISVTX))
    return fmt::format("may be written by others (mode {:o}; close it with `chmod go-w`)", s.st_mode & 07777);
  return "";
}

/// Opens `dir` one folder at a time, so that the folders checked are the folders passed through. Returns -1, with errno
/// and perhaps `why`, on failure.
int openBelowSafeFolders(const std::string &dir, std::string &why) {
  constexpr int mostLinks = 40;
  constexpr int folder = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  auto partsOf = [](const std::string &path) {
    std::vector<std::string> parts;  // the last one first
    for (const std::filesystem::path &part : std::filesystem::path(path))
      if (!part.empty() && part != "." && part != "/")
        parts.insert(parts.begin(), part.string());
    return parts;
  };
  std::error_code ec;
  const std::filesystem::path whole = std::filesystem::absolute(dir, ec);
  if (ec) {
    errno = ec.value();
    return -1;
  }
  std::vector<std::string> left = partsOf(whole.string());
  File at(open("/", folder));
  std::filesystem::path name = "/";  // of `at`
  for (int links = 0;;) {
    struct stat s;
    if (at.fd < 0 || fstat(at.fd, &s) != 0)
      return -1;
    if (left.empty()) {  // the root itself
      errno = EACCES;
      return -1;
    }
    if (const std::string open = openTo(s); !open.empty()) {
      why = fmt::format("{} can be replaced by others, as {}, above it, {}", dir, name.string(), open);
      errno = EACCES;
      return -1;
    }
    const std::string part = left.back();
    left.pop_back();
    if (left.empty())
      return openat(at.fd, part.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fstatat(at.fd, part.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0)
      return -1;
    if (!S_ISLNK(s.st_mode)) {
      File next(openat(at.fd, part.c_str(), folder));
      std::swap(at.fd, next.fd);
      name = part == ".." ? name.parent_path() : name / part;
      continue;
    }
    if (s.st_uid != 0 && s.st_uid != geteuid()) {
      why = fmt::format("{} can be replaced by others, as the link {} belongs to another user (number {})", dir,
                        (name / part).string(), s.st_uid);
      errno = EACCES;
      return -1;
    }
    std::string target(PATH_MAX, '\0');
    const ssize_t n = ++links > mostLinks ? -1 : readlinkat(at.fd, part.c_str(), target.data(), target.size());
    if (n < 0) {
      errno = links > mostLinks ? ELOOP : errno;
      return -1;
    }
    target.resize(size_t(n));
    if (target.starts_with('/')) {
      File root(open("/", folder));
      std::swap(at.fd, root.fd);
      name = "/";
    }
    for (const std::string &more : partsOf(target))  // the last one first, on top of what is left
      left.push_back(more);
  }
}

}  // namespace

std::string contentHash(llvm::ArrayRef<llvm::ArrayRef<char>> pieces) {
  llvm::BLAKE3 h;
  for (llvm::ArrayRef<char> p : pieces) {
    uint64_t n = p.size();
    h.update(llvm::StringRef(reinterpret_cast<const char *>(&n), sizeof n));
    h.update(llvm::StringRef(p.data(), p.size()));
  }
  return llvm::toHex(h.final(), /*LowerCase=*/true);
}

int openPrivateFolder(const std::string &dir, std::string &why) {
  why.clear();
  const int fd = openBelowSafeFolders(dir, why);
  int error = fd < 0 ? errno : 0;
  struct stat s;
  if (!error && fstat(fd, &s) != 0)
    error = errno;
  if (error) {
    if (why.empty())
      why = fmt::format("cannot open {}: {}", dir, std::strerror(error));
  } else if (!ours(s)) {
    error = EACCES;
    why = fmt::format("{0} belongs to another user or is open to others (mode {1:o}); make it yours with `chmod 700 "
                      "{0}`, or remove it",
                      dir, s.st_mode & 07777);
  }
  if (error) {
    if (fd >= 0)
      close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

static int makePrivateFolder(const std::string &dir, std::string &why) {
  if (const int fd = openPrivateFolder(dir, why); fd >= 0 || errno != ENOENT)
    return fd;
  // Folders above it are made with mode 0700 too, or openBelowSafeFolders might refuse them.
  std::vector<std::filesystem::path> missing;
  std::error_code ec;
  for (std::filesystem::path p = dir; !p.empty() && !std::filesystem::exists(p, ec) && p != p.parent_path();
       p = p.parent_path())
    if (p.has_filename())
      missing.push_back(p);
  int error = 0;
  for (; !missing.empty() && !error; missing.pop_back())
    error = mkdir(missing.back().c_str(), 0700) == 0 || errno == EEXIST ? 0 : errno;
  const int fd = openPrivateFolder(dir, why);
  if (fd < 0 && errno == ENOENT)
    why = fmt::format("cannot make {}: {}", dir, std::strerror(error ? error : ENOENT));
  return fd;
}

bool ObjectCache::make(const std::string &dir, std::string &why) { return File(makePrivateFolder(dir, why)).fd >= 0; }

ObjectCache::ObjectCache(const std::string &dir) : dir(dir) {
  if (dir.empty())
    return;
  std::string why;
  fd = makePrivateFolder(dir, why);
  if (fd >= 0)
    return;
  // Each warning is printed once per process.
  static std::mutex lock;
  static std::set<std::string> said;
  const std::lock_guard guard(lock);
  if (said.insert(why).second)
    printError("warning: no kernel cache: {}\n", why);
}

ObjectCache::~ObjectCache() {
  if (fd >= 0)
    close(fd);
}

std::optional<std::vector<char>> ObjectCache::read(const std::string &key) const {
  if (fd < 0)
    return std::nullopt;
  File f(openat(fd, key.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat s;
  if (f.fd < 0 || fstat(f.fd, &s) != 0 || !S_ISREG(s.st_mode) || !ours(s) || s.st_size < int64_t(headerBytes))
    return std::nullopt;
  char header[headerBytes];
  std::vector<char> data(s.st_size - headerBytes);
  if (!readAll(f.fd, header, headerBytes) || !readAll(f.fd, data.data(), data.size()))
    return std::nullopt;
  if (std::memcmp(header, magic, sizeof magic) != 0 ||
      std::memcmp(header + sizeof magic, checksum(key, data).data(), 32) != 0)
    return std::nullopt;
  return data;
}

void ObjectCache::write(const std::string &key, llvm::ArrayRef<char> data) const {
  if (fd < 0)
    return;
  const llvm::BLAKE3Result<32> sum = checksum(key, data);
  writeFile(fd, key, {magic, llvm::ArrayRef(reinterpret_cast<const char *>(sum.data()), sum.size()), data});
}

std::string ObjectCache::keep(const std::string &name, llvm::StringRef text, std::string &why) const {
  std::string folder = dir;
  File own(-1);
  if (fd < 0) {
    std::error_code ec;
    const std::filesystem::path among = std::filesystem::temp_directory_path(ec);
    folder = ((ec ? "/tmp" : among) / "gptc-XXXXXX").string();
    if (mkdtemp(folder.data()))
      own.fd = openPrivateFolder(folder, why);
    if (own.fd < 0) {
      why = fmt::format("cannot make {}: {}", folder, std::strerror(errno));
      return "";
    }
  }
  std::string path = (std::filesystem::path(folder) / name).string();
  if (writeFile(fd < 0 ? own.fd : fd, name, llvm::ArrayRef(text.data(), text.size())))
    return path;
  why = fmt::format("cannot write {}: {}", path, std::strerror(errno));
  if (fd < 0)
    rmdir(folder.c_str());
  return "";
}

}  // namespace gptc
