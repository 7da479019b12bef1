#include "support/input_files.h"

#include "support/diagnostics.h"
#include "support/regular_file.h"
#include "support/words.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

namespace gptc {

namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0)
      ::close(fd);
  }
};

/// "did you mean NAME?" where the same folder holds a file of nearly that name.
std::string nearName(const std::string &file) {
  namespace fs = std::filesystem;
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

[[noreturn]] void failRead(const std::string &file, const std::string &what, int error, const std::string &why) {
  throw UserError(ErrorCode::FileMissing, fmt::format("cannot read {} {}: {}", what, file, why),
                  error == ENOENT   ? nearName(file)
                  : error == EINVAL ? "write what is to be read into a file, and name that"
                                    : "check the path and its permissions");
}

[[noreturn]] void failWrite(const std::string &file, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    throw UserError(ErrorCode::DiskFull, fmt::format("no space left for {}", file),
                    "free some space or write elsewhere; nothing was replaced");
  throw UserError(ErrorCode::Unwritable, fmt::format("cannot write {}: {}", file, std::strerror(error)),
                  "choose a folder you may write to");
}

}  // namespace

std::string readInput(const std::string &file, const std::string &what) {
  const OpenedFile opened = openRegularFile(file);
  const Descriptor in{opened.fd};
  if (in.fd < 0)
    failRead(file, what, opened.error, opened.why);
  std::string content;
  content.resize(opened.size > 0 ? opened.size : 1 << 16);  // files of the kernel report no size
  size_t filled = 0;
  for (;;) {
    if (filled == content.size())
      content.resize(content.size() + (1 << 16));
    ssize_t n = ::read(in.fd, content.data() + filled, content.size() - filled);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      failRead(file, what, errno, std::strerror(errno));
    if (n == 0)
      break;
    filled += n;
  }
  content.resize(filled);
  return content;
}

/// Makes a renaming in the folder of `file` last. Best effort: the content is safe, and some file systems cannot.
static void syncFolderOf(const std::string &file) {
  const std::string folder = std::filesystem::path(file).parent_path().string();
  Descriptor in{::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (in.fd >= 0)
    ::fsync(in.fd);
}

void writeFileAtomically(const std::string &file, std::string_view content) {
  // The renaming would put a file into the place of a device or a pipe.
  if (struct stat s; ::stat(file.c_str(), &s) == 0 && !S_ISREG(s.st_mode))
    failWrite(file, S_ISDIR(s.st_mode) ? EISDIR : EINVAL);
  std::string temporary = fmt::format("{}.tmp{}", file, ::getpid());
  {
    Descriptor out{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    int error = out.fd < 0 ? errno : 0;
    while (!error && !content.empty()) {
      ssize_t n = ::write(out.fd, content.data(), content.size());
      if (n >= 0)
        content.remove_prefix(n);
      else if (errno != EINTR)
        error = errno;
    }
    if (!error && ::fsync(out.fd) != 0)
      error = errno;
    if (error) {
      ::unlink(temporary.c_str());
      failWrite(file, error);
    }
  }
  if (::rename(temporary.c_str(), file.c_str()) != 0) {
    int error = errno;
    ::unlink(temporary.c_str());
    failWrite(file, error);
  }
  syncFolderOf(file);
}

void makeFolder(const std::string &folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || !std::filesystem::is_directory(folder))
    failWrite(folder, error ? error.value() : ENOTDIR);
}

std::string resolveBeside(const std::string &path, const std::string &from) {
  namespace fs = std::filesystem;
  if (path.empty() || fs::path(path).is_absolute())
    return path;
  return (fs::path(from).parent_path() / path).lexically_normal().string();
}

}  // namespace gptc
