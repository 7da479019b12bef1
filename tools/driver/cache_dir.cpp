#include "tools/driver/cache_dir.h"

#include <cstdlib>

namespace gptc {

std::string defaultCacheDir() {
  if (const char *own = std::getenv("GPTC_CACHE"))
    return own;
  // XDG base directories: a relative path is to be ignored.
  if (const char *xdg = std::getenv("XDG_CACHE_HOME"); xdg && xdg[0] == '/')
    return std::string(xdg) + "/gptc";
  if (const char *home = std::getenv("HOME"); home && home[0])
    return std::string(home) + "/.cache/gptc";
  return "";
}

}  // namespace gptc
