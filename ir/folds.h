// When the sums of a step's logical shards are added up (passes/autodiff.cpp makes the functions that do it).
#pragma once

#include "ir/graph.h"

#include <cstdint>
#include <optional>
#include <string>

namespace gptc {

/// The function that adds to a shard's sums those of the levels below `level`, "fold2".
std::string nameOfFold(int level);

/// The level of the function that a step calls after logical shard `shard` of its rank, which is not the last: as many
/// as its number, from 0, has binary ones at its end.
int levelAfterShard(int64_t shard);

/// The level of the function that a step calls after call `k`, from 0, of @accumulate; none if that ends no shard, or
/// the last.
std::optional<int> foldAfter(const Module &m, int64_t k);

}  // namespace gptc
