// Links between processes of one machine, through memory that they share: several times as fast as sockets. Needs no
// library.
//
// Each rank has a segment, which exists as long as someone maps it: nothing is left behind by whoever is killed. In it,
// one ring of bytes for each other rank to write to. A message is its slot, its length and its bytes. Nobody else works
// on them: they move while a rank waits, which spins a little and then sleeps until a neighbour rings its bell.
#pragma once

#include "runtime/collectives/communicator.h"
#include "runtime/collectives/links.h"

namespace gptc {

/// What must be equal for two processes to share memory so: machine, user, and names of processes.
std::string machineId();

std::unique_ptr<Links> makeSharedLinks(int rank, int world);

}  // namespace gptc
