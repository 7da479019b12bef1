// "auto" decided by forecasts, and what `gptc explain` says of plans for several ranks.
#include "tools/estimate/auto.h"

#include "codegen/codegen.h"
#include "ir/mesh.h"
#include "support/diagnostics.h"
#include "tests/support/whole_run.h"
#include "tools/compiler/compile.h"
#include "tools/estimate/forecast.h"
#include "tools/planner/plan_memory.h"
#include "tools/study/explain.h"

#include "llvm/ADT/STLExtras.h"

#include <gtest/gtest.h>

#include <filesystem>

using namespace gptc;

namespace {

Config model(std::vector<std::string> more) {
  std::vector<std::string> settings = {"name=t",
                                       "model.n_layer=4",
                                       "model.n_head=4",
                                       "model.n_embd=128",
                                       "model.vocab_size=65",
                                       "model.block_size=64",
                                       "train.micro_batch=2",
                                       "train.global_batch_tokens=2048",
                                       "parallel.data=4"};
  settings.insert(settings.end(), more.begin(), more.end());
  return loadConfig("", settings, [](const std::string &) { return int64_t(0); });
}

constexpr int64_t plenty = int64_t(1) << 40;

/// The decision of the stage alone.
std::optional<Decision> chooseZeroStage(Config &c, const Target &target, int64_t bytesPerRank) {
  const std::vector<Decision> all = chooseParallel(c, target, bytesPerRank);
  EXPECT_LE(all.size(), 1u);
  return all.empty() ? std::nullopt : std::optional(all[0]);
}

TEST(AutoZeroStage, IsOneWhereThereIsMemory) {
  Config c = model({});
  const std::optional<Decision> d = chooseZeroStage(c, hostTarget(), plenty);
  ASSERT_TRUE(d);
  EXPECT_EQ(c.parallel.zeroStage, 1);
  EXPECT_EQ(d->choice, "1");
  EXPECT_LT(d->effect.memory, 0);  // against stage 0
  EXPECT_LT(d->effect.ms, 0);
  EXPECT_EQ(d->rejected.size(), 3u);
}

TEST(AutoZeroStage, DividesMoreWhereMemoryAsksForIt) {
  // What stages need, from the decision itself: the others are relative to the choice.
  Config c = model({"compile.remat=\"none\""});
  const Decision d = *chooseZeroStage(c, hostTarget(), plenty);
  const auto three = llvm::find_if(d.rejected, [](const Alternative &a) { return a.choice == "3"; });
  ASSERT_NE(three, d.rejected.end());
  ASSERT_LT(three->effect.memory, 0);
  ASSERT_GT(three->effect.ms, 0);
  int64_t low = 0, high = plenty;  // the least memory with which stage 1 is taken
  while (high - low > 1) {
    Config again = model({"compile.remat=\"none\""});
    const int64_t middle = low + (high - low) / 2;
    chooseZeroStage(again, hostTarget(), middle);
    (again.parallel.zeroStage == 1 ? high : low) = middle;
  }
  Config less = model({"compile.remat=\"none\""});
  const Decision e = *chooseZeroStage(less, hostTarget(), low);
  EXPECT_EQ(less.parallel.zeroStage, 3);
  EXPECT_TRUE(llvm::any_of(
      e.rejected, [](const Alternative &a) { return a.choice == "1" && a.why == "does not fit into memory"; }));
}

// With a free order between ranks, gradients of stage 2 add up as pieces, which are sent in each of four passes.
TEST(AutoZeroStage, KnowsWhatAFreeOrderMeansForStageTwo) {
  for (const char *order : {"tree", "fast"}) {
    Config c = model({"parallel.reduce_order=" + std::string(order)});
    const Decision d = *chooseZeroStage(c, hostTarget(), plenty);
    ASSERT_EQ(d.choice, "1");
    const auto two = llvm::find_if(d.rejected, [](const Alternative &a) { return a.choice == "2"; });
    ASSERT_NE(two, d.rejected.end());
    EXPECT_EQ(two->effect.memory < 0, *order == 'f') << order;
    EXPECT_EQ(two->effect.ms > 0, *order == 'f') << order;
  }
}

TEST(AutoZeroStage, LeavesAloneWhatIsWrittenAndWhatHasNoChoice) {
  for (const char *setting : {"parallel.zero_stage=2", "parallel.zero_stage=0", "parallel.data=1"}) {
    Config c = model({setting});
    const int64_t before = c.parallel.zeroStage;
    EXPECT_FALSE(chooseZeroStage(c, hostTarget(), 1)) << setting;
    EXPECT_EQ(c.parallel.zeroStage, before) << setting;
  }
}

// Ranks of other machines do not share the memory of this one. What passes may take is no rank's share.
TEST(AutoParallel, IsDecidedForTheMemoryOfARankOfThisMachine) {
  const Config c = model({});
  const PlanMemory all = memoryForPlans(c, hostTarget(), true, 0), two = memoryForPlans(c, hostTarget(), true, 2);
  EXPECT_EQ(all.ofRank, all.ofPlan / 4);
  EXPECT_EQ(two.ofRank, two.ofPlan / 2);
  const PlanMemory gpu = memoryForPlans(model({"compile.target=cuda:sm_90a", "compile.gpu_memory=24GiB"}),
                                        cudaTarget("cuda:sm_90a"), false, 2);
  EXPECT_GT(gpu.ofPlan, int64_t(1) << 33);
  EXPECT_EQ(gpu.ofRank, gpu.ofPlan) << "each rank has its own";
}

const Decision *named(const std::vector<Decision> &all, llvm::StringRef name) {
  const auto it = llvm::find_if(all, [&](const Decision &d) { return d.pass == "partition" && d.name == name; });
  return it == all.end() ? nullptr : &*it;
}

/// Wide enough that memory is the layers'.
Config onGpus(std::vector<std::string> more) {
  std::vector<std::string> settings = {"model.n_embd=1024",
                                       "model.n_head=8",
                                       "model.n_layer=8",
                                       "parallel.tensor=auto",
                                       "parallel.offload=auto",
                                       "precision.compute=bf16",
                                       "compile.target=\"cuda:sm_90a\""};
  settings.insert(settings.end(), more.begin(), more.end());
  return model(settings);
}

TEST(AutoParallel, SharesRanksOutAndKeepsTheBatch) {
  const Target gpu = cudaTarget("cuda:sm_90a");
  Config c = onGpus({});
  const std::vector<Decision> roomy = chooseParallel(c, gpu, plenty);
  EXPECT_EQ(c.parallel.data * c.parallel.tensor, 4);
  EXPECT_EQ(c.parallel.offload, "none") << "slower, and nothing asks for it";
  EXPECT_EQ(c.train.globalBatchTokens, c.train.microBatch * c.model.blockSize * c.parallel.data * c.train.accumulate);
  EXPECT_EQ(c.parallel.logicalShards, c.parallel.data);
  ASSERT_TRUE(named(roomy, "tensor") && named(roomy, "offload"));
  EXPECT_EQ(named(roomy, "tensor")->choice, fmt::format("{}", c.parallel.tensor));
  EXPECT_EQ(named(roomy, "tensor")->rejected.size(), 2u) << "1, 2 and 4 can be";
  EXPECT_EQ(named(roomy, "offload")->rejected.size(), 1u);
}

TEST(AutoParallel, TakesWhatFitsByItsPlan) {
  const Target gpu = cudaTarget("cuda:sm_90a");
  // With each amount of memory what is chosen has a plan that fits; where layers and states are whole, by offload.
  int offloaded = 0;
  for (const std::vector<std::string> &fixed :
       {std::vector<std::string>{}, {"parallel.tensor=1", "parallel.zero_stage=0"}})
    for (int64_t memory :
         fixed.empty() ? std::vector<int64_t>{1000, 1300, 1800, 2400} : std::vector<int64_t>{1800, 6000}) {
      std::vector<std::string> settings = {"compile.library_calls=off", "compile.remat=none", "compile.autotune=off"};
      settings.insert(settings.end(), fixed.begin(), fixed.end());
      Config c = onGpus(settings);
      chooseParallel(c, gpu, memory << 20);
      offloaded += c.parallel.offload == "optimizer";
      EXPECT_LE(planModule(c, gpu, "", plenty)->attrs.getInt("arena_bytes"), memory << 20)
          << "tensor " << c.parallel.tensor << ", stage " << c.parallel.zeroStage << ", " << c.parallel.offload;
    }
  EXPECT_EQ(offloaded, 1);
}

TEST(AutoParallel, WhatIsWrittenOrAbsentStays) {
  const Target gpu = cudaTarget("cuda:sm_90a");
  for (const std::vector<std::string> &kept :
       {std::vector<std::string>{"parallel.tensor=2", "parallel.offload=none", "parallel.data=2"},
        {"parallel.tensor=1", "parallel.offload=optimizer"}}) {
    Config c = onGpus(kept);
    const ParallelConfig before = c.parallel;
    const std::vector<Decision> all = chooseParallel(c, gpu, 1);
    EXPECT_EQ(all.size(), 1u) << "the stage";
    EXPECT_EQ(c.parallel.tensor, before.tensor);
    EXPECT_EQ(c.parallel.data, before.data);
    EXPECT_EQ(c.parallel.offload, before.offload);
  }
}

TEST(AutoParallel, IsDecidedForTheMachinesOfAFile) {
  const std::string file = GPTC_SOURCE_DIR "/examples/clusters/8xh100.toml";
  Config c = onGpus({});
  EXPECT_FALSE(chooseParallel(c, cudaTarget("cuda:sm_90a"), plenty, file).empty());
  Config cpu = model({"parallel.tensor=auto"});
  EXPECT_THROW(chooseParallel(cpu, hostTarget(), plenty, file), UserError);
}

TEST(Explain, SpeaksOfPlansForSeveralRanks) {
  const std::string dir = std::filesystem::temp_directory_path() / ("gptc-auto-" + std::to_string(getpid()));
  for (const std::vector<std::string> &mesh :
       {std::vector<std::string>{"parallel.data=2"},
        {"parallel.data=2", "parallel.zero_stage=3"},
        {"parallel.data=2", "parallel.tensor=2"},
        {"parallel.data=2", "parallel.offload=auto", "parallel.tensor=auto"},
        {"parallel.data=4", "parallel.logical_shards=8", "train.micro_batch=2"}}) {
    CompileRequest request;
    request.settings = {"name=t",
                        "model.n_layer=2",
                        "model.n_head=2",
                        "model.n_embd=32",
                        "model.vocab_size=65",
                        "model.block_size=16",
                        "train.micro_batch=2",
                        "train.global_batch_tokens=512"};
    request.settings.insert(request.settings.end(), mesh.begin(), mesh.end());
    request.planDir = dir;
    request.cacheDir = gptc::test::sharedFolder("kernels");  // most kernels are those of the other plans
    Config config;
    Plan plan;
    compilePlan(request, config, plan);
    const Explanation e = explain(plan, 1e12);
    const bool chosen =
        llvm::any_of(e.decisions, [](const Decision &d) { return d.pass == "partition" && d.name == "zero_stage"; });
    const bool tensorOpen = mesh.back() == "parallel.tensor=auto";
    if (!tensorOpen) {  // which may leave none to share the batch
      EXPECT_EQ(chosen, !llvm::is_contained(mesh, "parallel.zero_stage=3")) << mesh.back();
    }
    EXPECT_EQ(named(e.decisions, "tensor") != nullptr, tensorOpen) << mesh.back();
    if (tensorOpen) {
      EXPECT_EQ(Mesh::of(*plan.planned).ranks(), 2);
      PlanForRanks(plan, 4).write(dir + "/four", "");  // decided anew, for all of them
      EXPECT_TRUE(PlanForRanks(plan, 4).isIn(dir + "/four"));
      EXPECT_FALSE(PlanForRanks(plan, 4, 2).isIn(dir + "/four")) << "records of other ranks count";
      const Plan more = loadPlan(dir + "/four");
      EXPECT_EQ(Mesh::of(*more.planned).ranks(), 4);
      EXPECT_TRUE(llvm::is_contained(more.model, "parallel.tensor=\"auto\""));
    }
    EXPECT_GT(e.decisions.size(), 5u) << mesh.back();
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
