// Checksums shared by the manifests of plans and checkpoints.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace gptc {

/// The manifest's field "blake3": the checksum of its text without that field.
std::string manifestChecksum(nlohmann::json manifest);
/// The manifest's field "mark", which proves that this user made it: a hash of its text without both fields and of the
/// cache's secret (cache_secret.h).
std::string manifestMark(nlohmann::json manifest, const std::string &secret);

}  // namespace gptc
