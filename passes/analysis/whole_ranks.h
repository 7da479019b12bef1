// Ranks along "data" that each have the whole model and one shard of the batch, and states whose contents are each
// rank's own: what outer steps (passes/outer_steps.cpp) and compressed gradients (passes/compress_gradients.cpp) need.
#pragma once

#include "ir/graph.h"

#include <string>

namespace gptc {

/// What needs such ranks.
struct WholeRanks {
  std::string setting;  // with its value: "sync_every = 4"
  std::string help;     // of the error that refuses another setting beside it
  bool apart;           // whether no gradients go between the ranks in a step

  /// Throws UserError for what divides the work in another way, or has factors of fp16 or fp8.
  void require(const Module &m) const;
  /// Throws UserError: not with `what`.
  [[noreturn]] void refuse(const std::string &what) const;
};

/// Makes the state a piece, one for each of the ranks, of all ranks' contents one behind the other along dimension 0.
/// So checkpoints hold all of them.
void makeEachRanksOwn(State &s, int64_t ranks);

}  // namespace gptc
