// What the manifests of plans and checkpoints have in common.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace gptc {

/// The checksum that a manifest carries in its field "blake3": that of its text without the field.
std::string manifestChecksum(nlohmann::json manifest);

}  // namespace gptc
