#include "ir/folds.h"

#include "ir/facts.h"

#include <fmt/format.h>

#include <bit>

namespace gptc {

std::string nameOfFold(int level) { return fmt::format("fold{}", level); }

int levelAfterShard(int64_t shard) { return std::countr_one(uint64_t(shard)); }

std::optional<int> foldAfter(const Module &m, int64_t k) {
  const int64_t accumulate = fact<&BatchFacts::accumulate>(m), shards = fact<&ParallelFacts::shards>(m);
  if (shards <= 1 || k + 1 >= accumulate)
    return std::nullopt;
  const int64_t perShard = accumulate / shards;
  return (k + 1) % perShard == 0 ? std::optional(levelAfterShard(k / perShard)) : std::nullopt;
}

}  // namespace gptc
