#include "runtime/manifest.h"

#include "runtime/files.h"

#include <nlohmann/json.hpp>

namespace gptc {

std::string manifestChecksum(nlohmann::json manifest) {
  manifest.erase("blake3");
  return blake3(manifest.dump());
}

}  // namespace gptc
