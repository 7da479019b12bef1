// Plans for several ranks, run by as many threads of this program: the same bits on any number of ranks, in every stage
// of ZeRO, whatever the micro-batch.
#include "codegen/codegen.h"
#include "frontends/model_builder.h"
#include "frontends/toml_config.h"
#include "ir/diagnostics.h"
#include "passes/pass.h"
#include "runtime/arena.h"
#include "runtime/collectives/in_process.h"
#include "runtime/cpu_executor.h"
#include "runtime/state.h"
#include "tools/driver/codegen_passes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>

namespace gptc {
namespace {

struct Cut {
  int64_t ranks = 1, stage = 0, microBatches = 1;  // of a step, on each rank
  std::string order = "tree", compute = "fp32", optimizer = "adamw";
  int64_t bucket = 0;  // bytes of a bucket of collectives; 0: the default
};

constexpr int64_t sequences = 8, block = 16, logicalShards = 4;

std::unique_ptr<Module> plannedFor(const Cut &c, const Target &target) {
  const int64_t batch = sequences / c.ranks / c.microBatches;
  const Config config = loadConfig(
      "",
      {"model.preset=none", "model.n_layer=1", "model.n_head=2", "model.n_embd=64", "model.vocab_size=61",
       fmt::format("model.block_size={}", block), "model.dropout=0.1", fmt::format("optimizer.name={}", c.optimizer),
       fmt::format("optimizer.lr={}", c.optimizer == "adafactor" ? 0.2
                                      : c.optimizer == "sgd"     ? 0.1
                                                                 : 0.01),
       "optimizer.warmup_steps=1", "optimizer.momentum=0.9", "optimizer.first_moment=0.9",
       fmt::format("train.micro_batch={}", batch), fmt::format("precision.compute={}", c.compute),
       fmt::format("train.global_batch_tokens={}", sequences / c.ranks * block), "compile.remat=none"},
      [](const std::string &) { return int64_t(0); });
  std::unique_ptr<Module> m = buildModel(config);
  m->attrs.set("mesh_data", c.ranks);
  m->attrs.set("zero_stage", c.stage);
  m->attrs.set("reduce_order", c.order);
  m->attrs.set("shards", c.order == "tree" ? logicalShards / c.ranks : int64_t(1));
  PipelineOptions options;
  options.reproFile = "";
  std::string passes = defaultPipeline();
  if (c.bucket)
    passes.insert(passes.find("overlap-collectives") + std::strlen("overlap-collectives"),
                  fmt::format("{{bucket={}}}", c.bucket));
  runPipeline(*m, parsePipeline(passes, &target), options);
  return m;
}

struct Outcome {
  std::map<std::string, std::vector<char>> states;  // parameters and moments as wholes
  std::vector<float> losses;
  bool operator==(const Outcome &) const = default;
};

/// For compiled kernels, which are the same on all ranks and for most cuts.
const std::string &cacheDir() {
  static const std::string dir = [] {
    std::string name = testing::TempDir() + "/gptc-ranks-XXXXXX";
    return std::string(mkdtemp(name.data()));
  }();
  return dir;
}

Outcome train(const Cut &c, int steps) {
  registerCodegenPasses();
  const Target target = hostTarget(1);
  const std::unique_ptr<Module> planned = plannedFor(c, target);
  const Module &m = *planned;
  const int64_t batch = sequences / c.ranks / c.microBatches, shards = m.attrs.getInt("shards");
  InProcess together(int(c.ranks), std::chrono::seconds(20));
  std::vector<Outcome> of(c.ranks);
  std::vector<std::string> problems(c.ranks);
  auto rank = [&](int r) {
    const std::unique_ptr<Communicator> communicator = together.join(r);
    ThreadPool pool(1);
    Arena arena(m.attrs.getInt("arena_bytes"));
    CpuExecutor executor(m, target, target, arena, pool, cacheDir());
    executor.ranks = communicator.get();
    initializeStates(executor, 7);
    std::vector<int32_t> x(batch * block), y(batch * block);
    for (int step = 0; step < steps; ++step) {
      const float targets = float(sequences * block);
      const char *last = c.microBatches > 1 ? "update" : "train_step";
      for (int64_t k = 0; k < c.microBatches; ++k) {
        const int64_t sequence = (r * c.microBatches + k) * batch;
        for (int64_t i = 0; i < batch * block; ++i) {
          const int64_t at = (step * sequences + sequence) * block + i;
          x[i] = int32_t(at * at % 61), y[i] = int32_t((at + 1) * (at + 1) % 61);
        }
        executor.run(c.microBatches > 1 ? "accumulate" : last, {x.data(), y.data(), &sequence, &targets});
        const int64_t perShard = c.microBatches / std::max<int64_t>(1, shards),
                      shard = k / std::max<int64_t>(1, perShard);
        if (shards > 1 && (k + 1) % perShard == 0 && shard + 1 < shards)
          executor.run(fmt::format("fold{}", std::countr_one(uint64_t(shard))), {&targets});
      }
      if (c.microBatches > 1)
        executor.run(last, {&targets});
      of[r].losses.push_back(*static_cast<const float *>(executor.result(last, 0)));
    }
    for (const auto &s : m.states)
      if (const std::string kind = s->attrs.getString("kind"); kind == "param" || kind == "moment") {
        std::vector<char> &whole = of[r].states[s->name];
        whole.resize(wholeType(*s).bytes());
        loadWhole(executor, *s, whole.data());
      }
    EXPECT_TRUE(arena.intact());
    communicator->finish();
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < c.ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        rank(r);
      } catch (const UserError &e) {
        problems[r] = e.diagnostics[0].message;
      } catch (const std::exception &e) {
        problems[r] = e.what();
      }
    });
  for (std::thread &t : threads)
    t.join();
  for (int r = 0; r < c.ranks; ++r) {
    EXPECT_EQ(problems[r], "") << "rank " << r;
    EXPECT_TRUE(of[r] == of[0]) << "rank " << r << " has another result than rank 0";
  }
  return of[0];
}

class Ranks : public testing::TestWithParam<Cut> {};

TEST_P(Ranks, GiveTheBitsOfOne) {
  const Cut c = GetParam();
  const Outcome expected = train({1, 0, 4, "tree", c.compute, c.optimizer}, 3), got = train(c, 3);
  ASSERT_EQ(expected.losses.size(), 3u);
  EXPECT_LT(expected.losses[2], expected.losses[0]) << "it learns nothing";
  EXPECT_EQ(got.losses, expected.losses);
  for (const auto &[name, bytes] : expected.states) {
    auto it = got.states.find(name);
    ASSERT_TRUE(it != got.states.end()) << name;
    EXPECT_TRUE(it->second == bytes) << name << " differs";
  }
}

/// ZeRO's theory: of P ranks each holds a P-th of what the optimizer updates (parameters and two moments) from stage 1
/// on, beside a whole copy of the parameters, which stage 3 does without. What cannot be cut by rows stays whole. That
/// an arena has the bytes of its plan every executor checks.
TEST(RanksMemory, StatesOfARankFollowTheory) {
  registerCodegenPasses();
  const Target target = hostTarget(1);
  const std::unique_ptr<Module> alone = plannedFor({1, 0, 4}, target);
  for (int64_t ranks : {2, 4})
    for (int64_t stage : {0, 1, 2, 3}) {
      const std::unique_ptr<Module> m = plannedFor({ranks, stage, 1}, target);
      int64_t whole = 0, held = 0;
      for (const auto &s : m->states) {
        const std::string kind = s->attrs.getString("kind");
        if (kind == "whole")
          held += s->type.bytes();
        if (kind != "param" && kind != "moment")
          continue;
        const State *one = alone->state(s->name);
        ASSERT_TRUE(one) << s->name;
        const bool cut = stage >= 1 && one->type.rank() > 1 && one->type.padded(0) % ranks == 0;
        EXPECT_EQ(s->type.bytes() * (cut ? ranks : 1), one->type.bytes()) << s->name << " in stage " << stage;
        whole += one->type.bytes();
        held += s->type.bytes();
      }
      // In parts of a parameter. Vectors, which are not cut, are 2% of this model.
      const double parts = stage == 0 ? 3 : stage < 3 ? 1 + 3.0 / double(ranks) : 3.0 / double(ranks);
      EXPECT_NEAR(3 * double(held) / double(whole), parts, 3 * 0.02) << ranks << " ranks, stage " << stage;
    }
}

std::vector<Cut> cuts() {
  std::vector<Cut> all = {{1, 0, 8}};
  for (int64_t stage : {0, 1, 2, 3}) {
    all.push_back({2, stage, 2});
    all.push_back({2, stage, 4});
    all.push_back({4, stage, 1});
    all.push_back({4, stage, 2});
  }
  for (int64_t stage : {0, 1, 3})
    all.push_back({4, stage, 2, "tree", "bf16"});
  for (const char *optimizer : {"sgd", "adafactor"}) {
    for (int64_t stage : {0, 1, 2, 3})
      for (int64_t ranks : {2, 4})
        all.push_back({ranks, stage, 4 / ranks, "tree", "fp32", optimizer});
    all.push_back({4, 1, 1, "tree", "bf16", optimizer});
  }
  // Each collective by itself: most go on beside computation.
  for (int64_t stage : {0, 1, 3})
    for (int64_t microBatches : {1, 2})
      all.push_back({4, stage, microBatches, "tree", "fp32", stage == 1 ? "adafactor" : "adamw", 1});
  return all;
}

struct RemoveCache : testing::Environment {
  void TearDown() override { std::filesystem::remove_all(cacheDir()); }
};
const testing::Environment *const removeCache = testing::AddGlobalTestEnvironment(new RemoveCache);

TEST(Ranks, CollectivesGoOnBesideComputation) {
  registerCodegenPasses();
  const Target target = hostTarget(1);
  for (int64_t stage : {0, 1, 3}) {
    const std::unique_ptr<Module> m = plannedFor({4, stage, 1, "tree", "fp32", "adamw", 1}, target);
    int groups = 0, beside = 0;
    for (const Op &op : m->function("train_step")->body) {
      groups += op.is(OpKind::fused) && op.attrs.getString("kind") == "collective";
      beside += op.is(OpKind::done);
    }
    EXPECT_GT(beside, groups / 2) << "stage " << stage;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuts, Ranks, testing::ValuesIn(cuts()), [](const auto &info) {
  const Cut &c = info.param;
  return fmt::format("{}ranks_zero{}_{}micro_{}_{}_{}{}", c.ranks, c.stage, c.microBatches, c.order, c.compute,
                     c.optimizer, c.bucket ? "_apart" : "");
});

}  // namespace
}  // namespace gptc
