// The secret of the private cache folder (tuning.key). A file or record that carries a hash made with it was made by
// this user, because nobody else knows the secret; nothing else is trusted.
#pragma once

#include <string>

namespace gptc {

/// The secret of the folder `dir`; "" if there is none, if the folder is not private, or if `dir` is "".
std::string cacheSecret(const std::string &dir);
/// The same, but creates folder and secret if they are missing; "" if that fails.
std::string neededCacheSecret(const std::string &dir);

}  // namespace gptc
