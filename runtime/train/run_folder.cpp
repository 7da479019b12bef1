#include "runtime/train/run_folder.h"

#include "support/diagnostics.h"
#include "support/files.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <unistd.h>
#include <vector>

namespace gptc {
namespace fs = std::filesystem;

bool RunLock::isHeld(const std::string &outDir) {
  const int fd = ::open(pathIn(outDir).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  const bool isHeld = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return isHeld;
}

RunLock::RunLock(const std::string &outDir) : path(pathIn(outDir)) {
  makeDirs(outDir);
  fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0)
    throw UserError(ErrorCode::Unwritable, fmt::format("cannot write in {}: {}", outDir, strerror(errno)),
                    "choose another out_dir, or --out-dir");
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    throw UserError(ErrorCode::Unwritable, fmt::format("another run is writing in {}", outDir),
                    "wait for it, or choose another --out-dir");
  }
}

RunLock::~RunLock() { ::close(fd); }

void RunLock::mark(uint64_t number) {
  const std::string text = fmt::format("{}\n", number);
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, text.data(), text.size(), 0) != ssize_t(text.size()))
    throw UserError(ErrorCode::Unwritable, fmt::format("cannot write {}: {}", path, strerror(errno)));
}

std::string setAside(const std::string &outDir) {
  std::vector<std::string> found;
  std::error_code e;
  for (const char *name : {"checkpoints", "log.jsonl", "trace.json", "events", "certificate"})
    if (fs::exists(outDir + "/" + name, e))
      found.push_back(name);
  if (found.empty())
    return "";
  int n = 1;
  while (fs::exists(fmt::format("{}/old-{}", outDir, n), e))
    ++n;
  std::string old = fmt::format("{}/old-{}", outDir, n);
  makeDirs(old);
  for (const std::string &name : found)
    fs::rename(outDir + "/" + name, old + "/" + name, e);
  return old;
}

}  // namespace gptc
