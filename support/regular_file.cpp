#include "support/regular_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gptc {

OpenedFile openRegularFile(const std::string &path) {
  OpenedFile f;
  // Before it is opened, which some devices take as a command; and after, as it may be another one then.
  struct stat s {};
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
  f.why = f.error != EINVAL || error ? std::strerror(f.error)
          : S_ISFIFO(s.st_mode)      ? "it is a pipe, and only files are read"
          : S_ISSOCK(s.st_mode)      ? "it is a socket, and only files are read"
                                     : "it is a device, and only files are read";
  return f;
}

}  // namespace gptc
