// Checks that all ranks run the same program and plan.
#pragma once

#include "runtime/rendezvous/rendezvous.h"

namespace gptc {

/// Compares this rank's program and plan with rank 0's before either is used: two builds may round differently, and the
/// collectives of two plans do not fit together, or fit wrongly. Throws UserError(RanksDiffer), of which all ranks are
/// told.
void requireSameRun(RendezvousClient &ranks, const std::string &planDir, const std::string &planHash);

}  // namespace gptc
