// Runs plans for several ranks as threads of this program.
#pragma once

#include "ir/graph.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <barrier>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gptc {

class Executor;
struct Target;

/// Calls work(rank, executor) for all ranks of a planned module concurrently, each on its own thread. A rank whose
/// thread ends, by an exception too, leaves `meeting`, so that no other one waits for it there.
void onRanks(const Module &m, const Target &target, llvm::function_ref<void(int, Executor &)> work,
             std::barrier<> *meeting = nullptr);

/// How a step's sequences and the model are divided among ranks.
struct RankCut {
  int64_t data = 1, stage = 0, microBatches = 1;  // microBatches: per step and rank
  std::string order = "tree", compute = "fp32", optimizer = "adamw";
  int64_t tensor = 1;
  std::vector<std::string> settings;  // of the model, in addition to the common ones
  int64_t bucket = 0;                 // bytes of a bucket of collectives; 0: the default
  int64_t slot = 0;                   // bytes of a slot for groups on the host; 0: the default
  std::string target = "cpu";         // or "cuda:sm_90a", with a GPU for each rank
  int64_t ranks() const { return data * tensor; }
};

constexpr int64_t sequences = 8, block = 16, logicalShards = 4, vocabulary = 61;

struct RanksOutcome {
  std::map<std::string, std::vector<char>> states;  // whole parameters and moments
  std::vector<float> losses;
  bool operator==(const RanksOutcome &) const = default;
};

/// The one-layer module that all these tests train, before any pass.
std::unique_ptr<Module> importedFor(const RankCut &c);
/// That module, with `more` attributes, after the default pipeline.
std::unique_ptr<Module> plannedFor(const RankCut &c, const AttrMap &more = {});

/// Places of a rank's parameters, moments and anchors in f32, with those of padding.
using Contents = std::map<std::string, std::vector<float>>;
Contents contentsOf(Executor &executor);

/// A module with every collective, along both axes.
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
/// Runs function @f of the module in `text` on the ranks of its mesh, as threads, and in the interpreter. Returns each
/// rank's results from both (all f32 or i64) as numbers. Rank r's element i of every argument is 100 r + i.
struct EveryRanksResults {
  std::vector<std::vector<std::vector<double>>> got, reference;
};
EveryRanksResults runOnRanks(const std::string &text, const std::string &target = "cpu");
/// Trains `steps` steps from seed 7. Expects the same outcome on all ranks.
RanksOutcome train(const RankCut &c, int steps);
/// Fills in tokens and targets of `count` sequences of a step, from number `sequence` on.
void fillBatch(int step, int64_t sequence, int64_t count, std::vector<int32_t> &x, std::vector<int32_t> &y);

}  // namespace gptc
