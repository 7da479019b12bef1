// Loaded with LD_PRELOAD by tests that measure memory: the last-level cache has 32 MB, whatever the machine's has.
// Memory is measured in arrays of four times that cache. On a virtual machine that shows the cache of a large host
// these are gigabytes, which take ten seconds to come by.
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

FILE *open(const char *name, const char *path, const char *mode) {
  constexpr char size[] = "32768K\n";
  if (path && !std::strcmp(path, "/sys/devices/system/cpu/cpu0/cache/index3/size"))
    if (const int fd = ::memfd_create("size", MFD_CLOEXEC); fd >= 0) {
      if (::pwrite(fd, size, sizeof size - 1, 0) == sizeof size - 1)
        return ::fdopen(fd, "r");
      ::close(fd);
    }
  return reinterpret_cast<FILE *(*)(const char *, const char *)>(::dlsym(RTLD_NEXT, name))(path, mode);
}

}  // namespace

extern "C" {
#undef fopen
#undef fopen64
__attribute__((visibility("default"))) FILE *fopen(const char *path, const char *mode) {
  return open("fopen", path, mode);
}
__attribute__((visibility("default"))) FILE *fopen64(const char *path, const char *mode) {
  return open("fopen64", path, mode);
}
}
