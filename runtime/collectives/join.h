// Joins processes to a group: they choose the links, exchange addresses through the rendezvous, and connect.
#pragma once

#include "runtime/collectives/communicator.h"

namespace gptc {

/// For groups of at least two. Throws UserError(TargetUnavailable) if Gloo is needed and missing.
std::unique_ptr<Communicator> joinProcesses(RendezvousClient &client, const Group &group, const JoinOptions &options);

}  // namespace gptc
