// What the manifests of plans and checkpoints have in common.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace gptc {

/// The checksum that a manifest carries in its field "blake3": that of its text without the field.
std::string manifestChecksum(nlohmann::json manifest);
/// What it carries in "mark" where it was made here: a hash of its text without both fields, with the secret of the
/// cache (cache_secret.h).
std::string manifestMark(nlohmann::json manifest, const std::string &secret);

}  // namespace gptc
