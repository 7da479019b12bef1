// How processes become a group: they choose their links, exchange addresses through the rendezvous, and connect.
#pragma once

#include "runtime/collectives/communicator.h"

namespace gptc {

/// For a group of several. UserError(TargetUnavailable) where it needs Gloo and that is missing.
std::unique_ptr<Communicator> joinProcesses(RendezvousClient &client, const Group &group, const JoinOptions &options);

}  // namespace gptc
