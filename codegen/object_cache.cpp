#include "codegen/object_cache.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/BLAKE3.h"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace gptc {

namespace {

constexpr char magic[8] = {'g', 'p', 't', 'c', 'o', 'b', 'j', '1'};
constexpr size_t headerBytes = sizeof magic + 32;

class File {
public:
  explicit File(int fd) : fd(fd) {}
  ~File() {
    if (fd >= 0)
      close(fd);
  }
  File(const File &) = delete;
  const int fd;
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

llvm::BLAKE3Result<32> checksum(llvm::ArrayRef<char> data) {
  return llvm::BLAKE3::hash(llvm::ArrayRef(reinterpret_cast<const uint8_t *>(data.data()), data.size()));
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
  int fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int error = fd < 0 ? errno : 0;
  struct stat s;
  if (!error && fstat(fd, &s) != 0)
    error = errno;
  if (error) {
    why = fmt::format("cannot open {}: {}", dir, std::strerror(error));
  } else if (!ours(s)) {
    error = EACCES;
    why = fmt::format("{} belongs to another user or is open to others (mode {:o}); make it yours with `chmod 700`, or "
                      "remove it",
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

ObjectCache::ObjectCache(const std::string &dir) {
  if (dir.empty())
    return;
  std::error_code ec;
  std::filesystem::create_directories(std::filesystem::path(dir).parent_path(), ec);
  mkdir(dir.c_str(), 0700);
  std::string why;
  fd = openPrivateFolder(dir, why);
  if (fd < 0)
    fmt::print(stderr, "warning: no kernel cache: {}\n", why);
}

ObjectCache::~ObjectCache() {
  if (fd >= 0)
    close(fd);
}

std::optional<std::vector<char>> ObjectCache::read(const std::string &key) const {
  if (fd < 0)
    return std::nullopt;
  File f(openat(fd, key.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat s;
  if (f.fd < 0 || fstat(f.fd, &s) != 0 || !S_ISREG(s.st_mode) || !ours(s) || s.st_size < int64_t(headerBytes))
    return std::nullopt;
  char header[headerBytes];
  std::vector<char> data(s.st_size - headerBytes);
  if (!readAll(f.fd, header, headerBytes) || !readAll(f.fd, data.data(), data.size()))
    return std::nullopt;
  if (std::memcmp(header, magic, sizeof magic) != 0 ||
      std::memcmp(header + sizeof magic, checksum(data).data(), 32) != 0)
    return std::nullopt;
  return data;
}

void ObjectCache::write(const std::string &key, llvm::ArrayRef<char> data) const {
  if (fd < 0)
    return;
  static std::atomic<unsigned> counter;
  std::string temporary = fmt::format(".{}.{}.tmp", getpid(), counter++);
  bool whole;
  {
    File f(openat(fd, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (f.fd < 0)
      return;
    whole = writeAll(f.fd, magic, sizeof magic) &&
            writeAll(f.fd, reinterpret_cast<const char *>(checksum(data).data()), 32) &&
            writeAll(f.fd, data.data(), data.size());
  }
  if (!whole || renameat(fd, temporary.c_str(), fd, key.c_str()) != 0)
    unlinkat(fd, temporary.c_str(), 0);
}

}  // namespace gptc
