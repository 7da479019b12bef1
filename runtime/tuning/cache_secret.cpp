#include "runtime/tuning/cache_secret.h"

#include "codegen/object_cache.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gptc {
namespace {

constexpr size_t digits = 64;
constexpr const char *name = "tuning.key";

class Folder {
public:
  explicit Folder(const std::string &dir) {
    if (std::string why; !dir.empty())
      fd = openPrivateFolder(dir, why);
  }
  ~Folder() {
    if (fd >= 0)
      close(fd);
  }
  Folder(const Folder &) = delete;
  int fd = -1;
};

std::string readSecret(int folder) {
  const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  struct stat s;
  char text[digits];
  std::string secret;
  if (fd >= 0 && fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid() && !(s.st_mode & 077) &&
      s.st_size == digits && read(fd, text, digits) == digits)
    secret.assign(text, digits);
  if (fd >= 0)
    close(fd);
  return secret;
}

}  // namespace

std::string cacheSecret(const std::string &dir) {
  const Folder folder(dir);
  return folder.fd < 0 ? "" : readSecret(folder.fd);
}

std::string neededCacheSecret(const std::string &dir) {
  std::string why;
  if (dir.empty() || !ObjectCache::make(dir, why))
    return "";
  const Folder folder(dir);
  if (folder.fd < 0)
    return "";
  if (const std::string secret = readSecret(folder.fd); !secret.empty())
    return secret;
  constexpr size_t ofName = 8;
  unsigned char random[digits / 2 + ofName];
  if (getrandom(random, sizeof random, 0) != sizeof random)
    return "";
  std::string fresh;
  for (unsigned char c : random)
    fresh += fmt::format("{:02x}", c);
  const std::string temporary = fmt::format(".{}.{}.tmp", name, fresh.substr(digits));
  const int fd = openat(folder.fd, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0)
    return "";
  bool whole = write(fd, fresh.data(), digits) == ssize_t(digits) && fsync(fd) == 0;
  whole = close(fd) == 0 && whole;
  // The first of several processes wins; a file without a valid secret is replaced. A link takes the name only if it is
  // free; on file systems without links such a rename does.
  auto put = [&] {
    return linkat(folder.fd, temporary.c_str(), folder.fd, name, 0) == 0 ||
           (errno != EEXIST && renameat2(folder.fd, temporary.c_str(), folder.fd, name, RENAME_NOREPLACE) == 0);
  };
  if (whole && !put() && readSecret(folder.fd).empty() && unlinkat(folder.fd, name, 0) == 0)
    put();
  unlinkat(folder.fd, temporary.c_str(), 0);
  return readSecret(folder.fd);
}

}  // namespace gptc
