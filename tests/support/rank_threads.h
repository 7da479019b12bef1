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
/// Every collective, along both axes.
constexpr const char *everyCollective = R"(module {mesh_data=2, mesh_tensor=2} {
  func @f(%x: f32[4,8], %y: f32[3,5], %z: f32[]) -> (f32[4,8], f32[2,8], f32[4,4], f32[4,8], f32[4,8], f32[4,8], f32[2,8], i64[], f32[3,5], f32[]) {
    %sum = all_reduce %x {axis="data", ranks=2} : f32[4,8]
    %rows = reduce_scatter %x {axis="data", ranks=2} : f32[2,8]
    %columns = reduce_scatter %x {axis="tensor", dim=1, ranks=2} : f32[4,4]
    %whole = all_gather %columns {axis="tensor", dim=1, ranks=2} : f32[4,8]
    %first = broadcast_from %x {axis="tensor", ranks=2} : f32[4,8]
    %second = broadcast_from %x {axis="data", ranks=2, root=1} : f32[4,8]
    %own = own_part %second {axis="tensor", ranks=2} : f32[2,8]
    %place = axis_index {axis="data", ranks=2} : i64[]
    %odd = all_reduce %y {axis="data", ranks=2} : f32[3,5]
    %scalar = all_reduce %z {axis="tensor", ranks=2} : f32[]
    return %sum, %rows, %columns, %whole, %first, %second, %own, %place, %odd, %scalar
  }
})";
/// Runs function @f of the module in this text on the ranks of its mesh, as threads, and in the interpreter: of both
/// the results of each rank, all f32 or i64, as numbers. Rank r's element i of every argument is 100 r + i.
struct EveryRanksResults {
  std::vector<std::vector<std::vector<double>>> got, reference;
};
EveryRanksResults runOnRanks(const std::string &text, const std::string &target = "cpu");
/// Trains some steps from seed 7. All ranks must end with the same outcome.
Outcome train(const RankCut &c, int steps);
/// Tokens and targets of a step's sequences from the first on.
void fillBatch(int step, int64_t sequence, int64_t count, std::vector<int32_t> &x, std::vector<int32_t> &y);

}  // namespace gptc
