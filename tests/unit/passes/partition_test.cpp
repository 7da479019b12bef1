// What ranks compute together is what one computes alone, whatever holds which piece.
#include "small_gpt.h"

#include "ir/mesh.h"
#include "support/diagnostics.h"

#include <cmath>
#include <set>

namespace gptc::test {
namespace {

struct Cut {
  int64_t ranks = 1, stage = 0, accumulate = 1, shards = 1;  // micro-batches and logical shards of a rank
  std::string order = "tree", compute = "fp32", optimizer = "adamw";
};

std::string nameOfCut(const testing::TestParamInfo<Cut> &info) {
  const Cut &c = info.param;
  return fmt::format("{}ranks_zero{}_{}micro_{}shards_{}_{}_{}", c.ranks, c.stage, c.accumulate, c.shards, c.order,
                     c.compute, c.optimizer);
}

constexpr int64_t sequences = 8;

SmallGpt model(const Cut &c) {
  SmallGpt o;
  o.width = o.vocab = 8, o.dropout = 0.2;
  o.accumulate = c.accumulate;
  o.batch = sequences / c.ranks / c.accumulate;
  return o;
}

std::unique_ptr<Module> compiled(const Cut &c, const std::string &passes) {
  auto m = smallGpt(model(c));
  m->attrs.set("mesh_data", c.ranks);
  m->attrs.set("zero_stage", c.stage);
  m->attrs.set("shards", c.shards);
  m->attrs.set("reduce_order", c.order);
  m->attrs.set("compute", c.compute);
  m->attrs.set("optimizer", c.optimizer);
  if (c.optimizer != "adamw")
    m->attrs.set(c.optimizer == "sgd" ? "momentum" : "first_moment", 0.9);
  runPasses(*m, passes);
  EXPECT_EQ(verify(*m), std::vector<std::string>());
  return m;
}

constexpr const char *allPasses = "canonicalize,cse,dce,autodiff,optimizer,canonicalize,cse,dce,precision,partition";

/// The content of a state of one rank, given that of the parameter or moment as a whole.
Tensor pieceOf(const State &s, const Tensor &whole, int64_t rank) {
  if (!isPiece(s))
    return Tensor(s.type, whole.data);
  Tensor t(s.type);
  const size_t n = t.data.size();
  for (size_t i = 0; i < n && rank * n + i < whole.data.size(); ++i)
    t.data[i] = whole.data[rank * n + i];
  return t;
}

/// Some steps on all ranks; returns the parameters and moments as wholes, and what the last step returned.
StateMap train(const Cut &c, int steps, std::vector<Tensor> &last) {
  const SmallGpt o = model(c);
  Cut alone;
  alone.optimizer = c.optimizer;
  auto m = compiled(c, allPasses), whole = compiled(alone, allPasses);
  const StateMap start = initialState(*whole);
  std::vector<StateMap> states(c.ranks);
  for (int64_t r = 0; r < c.ranks; ++r) {
    states[r] = initialState(*m);
    for (const auto &s : m->states) {
      const std::string of = s->attrs.getString("of");
      if (auto it = start.find(of.empty() ? s->name : of); it != start.end())
        states[r][s->name] = pieceOf(*s, it->second, r);
    }
    for (const char *counter : {"rng_seed", "step"})
      states[r][counter] = start.find(counter)->second;
  }
  const double valid = validTokens(o, sequences);
  const int64_t own = sequences / c.ranks;
  for (int step = 0; step < steps; ++step) {
    auto batch = [&](int64_t micro) {
      std::vector<std::vector<Tensor>> args;
      for (int64_t r = 0; r < c.ranks; ++r) {
        const int64_t first = r * own + micro * o.batch;
        args.push_back({tokens(o, first, o.batch, false), tokens(o, first, o.batch, true),
                        scalar(double(first), DType::i64), scalar(valid, DType::f32)});
      }
      return args;
    };
    std::vector<std::vector<Tensor>> results;
    if (const Function *f = m->function("train_step")) {
      results = interpretRanks(*f, batch(0), states);
    } else {
      const std::vector<std::vector<Tensor>> count(c.ranks, {scalar(valid, DType::f32)});
      for (int64_t micro = 0; micro < c.accumulate; ++micro) {
        interpretRanks(*m->function("accumulate"), batch(micro), states);
        const int64_t perShard = c.accumulate / c.shards, shard = micro / perShard;
        if ((micro + 1) % perShard == 0 && shard + 1 < c.shards)
          interpretRanks(*m->function(fmt::format("fold{}", __builtin_ctzll(~uint64_t(shard)))), count, states);
      }
      results = interpretRanks(*m->function("update"), count, states);
    }
    for (const auto &r : results)
      for (size_t i = 0; i < r.size(); ++i)
        EXPECT_EQ(r[i].data, results[0][i].data) << "all ranks return the same";
    last = results[0];
  }
  StateMap end;
  for (const auto &s : whole->states) {
    const State &mine = *m->state(s->name);
    Tensor t(s->type, {});
    if (isPiece(mine))
      for (const StateMap &of : states)
        t.data.insert(t.data.end(), of.find(s->name)->second.data.begin(), of.find(s->name)->second.data.end());
    else
      t.data = states[0].find(s->name)->second.data;
    t.data.resize(s->type.elements());
    for (int64_t r = 0; r < c.ranks; ++r) {
      if (!isPiece(mine)) {
        EXPECT_EQ(states[r].find(s->name)->second.data, t.data) << s->name << " of rank " << r;
      }
      if (const State *copy = m->state("whole." + s->name)) {
        EXPECT_EQ(states[r].find(copy->name)->second.data, t.data) << copy->name << " of rank " << r;
      }
    }
    end[s->name] = std::move(t);
  }
  return end;
}

class PartitionedStep : public testing::TestWithParam<Cut> {};

TEST_P(PartitionedStep, TrainsLikeOneRank) {
  std::vector<Tensor> last, expectedLast;
  Cut alone;
  alone.compute = GetParam().compute;
  alone.optimizer = GetParam().optimizer;
  const StateMap expected = train(alone, 3, expectedLast), got = train(GetParam(), 3, last);
  for (size_t i = 0; i < expectedLast.size(); ++i)
    EXPECT_NEAR(last[i].data[0], expectedLast[i].data[0], 1e-12 * std::fabs(expectedLast[i].data[0]));
  for (const auto &[name, tensor] : expected) {
    const Tensor &other = got.find(name)->second;
    double worst = 0, most = 0;
    for (size_t i = 0; i < tensor.data.size(); ++i) {
      worst = std::max(worst, std::fabs(tensor.data[i] - other.data[i]));
      most = std::max(most, std::fabs(tensor.data[i]));
    }
    EXPECT_LE(worst, 1e-9 * most) << name.str();
  }
}

std::vector<Cut> cuts() {
  std::vector<Cut> all = {{1, 0, 4, 2}, {1, 0, 8, 8}, {1, 0, 4, 1}};
  for (int64_t ranks : {2, 4})
    for (int64_t stage : {0, 1, 2, 3}) {
      all.push_back({ranks, stage, 1, 1});
      all.push_back({ranks, stage, 2, 1, "fast"});
      all.push_back({ranks, stage, 2, 2});
    }
  for (const char *optimizer : {"sgd", "adafactor"})
    for (int64_t stage : {0, 1, 2, 3}) {
      all.push_back({1, 0, 4, 4, "tree", "fp32", optimizer});
      all.push_back({4, stage, 1, 1, "tree", "fp32", optimizer});
      all.push_back({2, stage, 2, 2, "tree", "fp32", optimizer});
      all.push_back({2, stage, 2, 1, "fast", "fp32", optimizer});
    }
  std::set<std::string> seen;
  std::erase_if(all, [&](const Cut &c) { return !seen.insert(nameOfCut(testing::TestParamInfo<Cut>(c, 0))).second; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cuts, PartitionedStep, testing::ValuesIn(cuts()), nameOfCut);

int64_t bytesOf(const Module &m, llvm::StringRef kind) {
  int64_t n = 0;
  for (const auto &s : m.states)
    if (s->attrs.getString("kind") == kind)
      n += s->type.bytes();
  return n;
}

// wpe has 5 rows and vectors have none to divide: they stay whole.
TEST(PartitionMemory, FollowsTheStage) {
  auto alone = compiled({}, allPasses);
  int64_t whole = 0;
  for (const auto &s : alone->states)
    if (s->attrs.getString("kind") == "param" && (s->type.rank() < 2 || s->name == "wpe"))
      whole += s->type.bytes();
  const int64_t all = bytesOf(*alone, "param");
  for (int64_t ranks : {2, 4})
    for (int64_t stage : {0, 1, 2, 3}) {
      auto m = compiled({ranks, stage}, allPasses);
      const int64_t piece = stage ? whole + (all - whole) / ranks : all;
      EXPECT_EQ(bytesOf(*m, "param"), piece) << stage;
      EXPECT_EQ(bytesOf(*m, "moment"), 2 * piece) << stage;
      EXPECT_EQ(bytesOf(*m, "whole"), stage == 1 || stage == 2 ? all - whole : 0) << stage;
    }
}

TEST(PartitionMemory, OfAccumulatorsFollowsTheStageWhereTheOrderIsFree) {
  for (const char *order : {"fast", "tree"})
    for (int64_t stage : {0, 1, 2, 3}) {
      auto m = compiled({4, stage, 2, 1, order}, allPasses);
      int divided = 0;
      for (const auto &s : m->states)
        if (s->attrs.getString("kind") == "grad") {
          const bool divides = wholeType(*s).rank() >= 2 && s->name != "grad.wpe";
          EXPECT_EQ(isPiece(*s), divides && stage >= 2 && *order == 'f') << s->name << ", " << order << stage;
          divided += isPiece(*s);
        }
      EXPECT_EQ(divided > 0, stage >= 2 && *order == 'f');
    }
}

// Of fc.w [8,16] a rank holds two of eight row statistics, and all 16 of its columns.
TEST(PartitionMemory, OfAdafactorFollowsTheRows) {
  auto m = compiled({4, 1, 1, 1, "tree", "fp32", "adafactor"}, allPasses);
  EXPECT_EQ(m->state("row.fc.w")->type.str(), "f32[2]");
  EXPECT_EQ(wholeType(*m->state("row.fc.w")).str(), "f32[8]");
  EXPECT_EQ(m->state("column.fc.w")->type.str(), "f32[16]");
  EXPECT_EQ(m->state("update.fc.w")->type.str(), "f32[2,16]");
}

// Precision leaves reads of masters behind whose low copies are read instead.
TEST(PartitionMemory, HoldsNoWholeThatNobodyReads) {
  for (int64_t stage : {1, 2, 3})
    for (const char *compute : {"fp32", "bf16"}) {
      const auto m = compiled({2, stage, 2, 1, "tree", compute}, allPasses);
      for (const auto &s : m->states) {
        if (s->attrs.getString("kind") != "whole")
          continue;
        bool read = false;
        for (const auto &f : m->functions)
          for (const Op &op : f->body)
            read |= op.is(OpKind::read) && op.state == s->name && !op.result()->unused();
        EXPECT_TRUE(read) << s->name << ", stage " << stage << ", " << compute;
      }
    }
}

TEST(PartitionNot, LeavesAloneWhatHasOneRank) {
  auto m = compiled({}, "autodiff,optimizer");
  const std::string before = print(*m);
  runPasses(*m, "partition");
  EXPECT_EQ(print(*m), before);
}

TEST(PartitionNot, RunsOnce) {
  auto m = compiled({2, 1}, allPasses);
  const std::string before = print(*m);
  runPasses(*m, "partition");
  EXPECT_EQ(print(*m), before);
}

}  // namespace
}  // namespace gptc::test
