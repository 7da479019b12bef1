// Ranks that do not run the same thing.
#pragma once

#include "runtime/rendezvous/rendezvous.h"

namespace gptc {

/// Compares this rank's program and plan with those of rank 0, before anything is computed with either: two builds may
/// round differently, and two plans meet in collectives that do not fit together, or worse, that do.
/// UserError(RanksDiffer), which all ranks hear of.
void requireSameRun(RendezvousClient &ranks, const std::string &planDir, const std::string &planHash);

}  // namespace gptc
