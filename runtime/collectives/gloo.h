// Groups of ranks in processes, by Gloo's plug-in.
#pragma once

#include "runtime/collectives/communicator.h"

namespace gptc {

/// For a group of several. UserError(TargetUnavailable) where the plug-in or Gloo is missing.
std::unique_ptr<Communicator> joinByGloo(RendezvousClient &client, const Group &group, const JoinOptions &options);

}  // namespace gptc
