// Links between processes of one machine through shared memory, several times as fast as sockets. Needs no library.
//
// Each rank has a segment that exists while a process maps it, so killed processes leave nothing behind. It contains
// one ring buffer for each other rank to write to. A message is its slot, its length and its bytes. No extra thread
// moves messages: they progress while a rank waits. A waiting rank spins a little, then sleeps until another rank wakes
// it.
#pragma once

#include "runtime/collectives/communicator.h"
#include "runtime/collectives/links.h"

namespace gptc {

/// Equal for two processes that can share memory: machine, namespaces of processes and of users, and user; "" if
/// unknown.
std::string machineId();

std::unique_ptr<Links> makeSharedLinks(int rank, int world);

}  // namespace gptc
