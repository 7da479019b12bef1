#include "tools/planner/cache_dir.h"

#include "support/diagnostics.h"
#include "support/environment.h"

#include <cstdlib>

namespace gptc {

std::string defaultCacheDir() {
  if (const char *own = ownVariable("GPTC_CACHE"))
    return own;
  // The XDG specification says to ignore relative paths.
  if (const char *xdg = std::getenv("XDG_CACHE_HOME"); xdg && xdg[0] == '/')
    return std::string(xdg) + "/gptc";
  if (const char *home = std::getenv("HOME"); home && home[0])
    return std::string(home) + "/.cache/gptc";
  return "";
}

std::string neededCacheDir() {
  std::string dir = defaultCacheDir();
  if (dir.empty())
    throw UserError(ErrorCode::Usage, "there is no cache: HOME, XDG_CACHE_HOME and GPTC_CACHE name no folder",
                    "set GPTC_CACHE to a folder of your own");
  return dir;
}

}  // namespace gptc
