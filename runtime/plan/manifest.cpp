#include "runtime/plan/manifest.h"

#include "support/files.h"
#include "support/json.h"

namespace gptc {

std::string manifestChecksum(nlohmann::json manifest) {
  manifest.erase("blake3");
  return blake3(manifest.dump());
}

std::string manifestMark(nlohmann::json manifest, const std::string &secret) {
  manifest.erase("blake3");
  manifest.erase("mark");
  return blake3(secret + " plan " + manifest.dump());
}

}  // namespace gptc
