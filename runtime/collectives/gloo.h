// Links between processes over TCP, by Gloo's plug-in.
#pragma once

#include "runtime/collectives/links.h"

#include <memory>

namespace gptc {

/// Null where the address or interface cannot be used. UserError(TargetUnavailable) where the plug-in or Gloo is
/// missing.
std::unique_ptr<Links> makeGlooLinks(const LinksOptions &options, LinkError &e);

}  // namespace gptc
