// Where compiled kernels are kept between runs.
#pragma once

#include <string>

namespace gptc {

/// $GPTC_CACHE, else $XDG_CACHE_HOME/gptc, else ~/.cache/gptc; "" (no cache) where none of them is set or GPTC_CACHE is
/// empty. The folder need not exist.
std::string defaultCacheDir();
/// The same for commands that are about it: UserError(Usage) where there is none.
std::string neededCacheDir();

}  // namespace gptc
