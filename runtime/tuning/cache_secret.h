// A secret of the private cache folder (tuning.key). What carries a hash with it was made here, by this user: nobody
// else can know it, so that neither a file from elsewhere nor a line that says so is believed.
#pragma once

#include <string>

namespace gptc {

/// The secret of the folder `dir`; "" where there is none, where the folder is not private, or where `dir` is "".
std::string cacheSecret(const std::string &dir);
/// The same, made where there is none yet, with its folder; "" where that cannot be.
std::string neededCacheSecret(const std::string &dir);

}  // namespace gptc
