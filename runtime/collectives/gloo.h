// Links between processes over TCP, by Gloo's plug-in.
#pragma once

#include "runtime/collectives/links.h"

#include <memory>

namespace gptc {

/// Null if the address or interface cannot be used. Throws UserError(TargetUnavailable) if the plug-in or Gloo is
/// missing.
std::unique_ptr<Links> makeGlooLinks(const LinksOptions &options, LinkError &e);

}  // namespace gptc
