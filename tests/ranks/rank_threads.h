// Plans for several ranks, run by as many threads of this program.
#pragma once

#include "ir/graph.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

/// How a step's sequences, and the model, are cut.
struct RankCut {
  int64_t data = 1, stage = 0, microBatches = 1;  // of a step, on each rank
  std::string order = "tree", compute = "fp32", optimizer = "adamw";
  int64_t tensor = 1;
  std::vector<std::string> settings;  // of the model, beyond those of all
  int64_t bucket = 0;                 // bytes of a bucket of collectives; 0: the default
  int64_t slot = 0;                   // bytes of a slot of what the host updates; 0: the default
  std::string target = "cpu";         // or "cuda:sm_90a", a GPU for each rank
  int64_t ranks() const { return data * tensor; }
};

constexpr int64_t sequences = 8, block = 16, logicalShards = 4, vocabulary = 61;

struct Outcome {
  std::map<std::string, std::vector<char>> states;  // parameters and moments as wholes
  std::vector<float> losses;
  bool operator==(const Outcome &) const = default;
};

/// The module of one layer that all tests here train, before any pass.
std::unique_ptr<Module> importedFor(const RankCut &c);
/// The same through the default pipeline.
std::unique_ptr<Module> plannedFor(const RankCut &c);
/// Trains some steps from seed 7. All ranks must end with the same outcome.
Outcome train(const RankCut &c, int steps);
/// Tokens and targets of a step's sequences from the first on.
void fillBatch(int step, int64_t sequence, int64_t count, std::vector<int32_t> &x, std::vector<int32_t> &y);

}  // namespace gptc
