// The folder that keeps compiled kernels between runs.
#pragma once

#include <string>

namespace gptc {

/// $GPTC_CACHE, else $XDG_CACHE_HOME/gptc, else ~/.cache/gptc. "" (no cache) if none of them is set or GPTC_CACHE is
/// empty. The folder need not exist.
std::string defaultCacheDir();
/// The same for commands that require a cache: throws UserError(Usage) if there is none.
std::string neededCacheDir();

}  // namespace gptc
