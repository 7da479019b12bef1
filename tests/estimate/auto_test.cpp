// "auto" decided by forecasts, and what `gptc explain` says of plans for several ranks.
#include "tools/estimate/auto.h"

#include "codegen/codegen.h"
#include "tools/driver/compile.h"
#include "tools/driver/explain.h"
#include "tools/estimate/forecast.h"

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

TEST(Explain, SpeaksOfPlansForSeveralRanks) {
  const std::string dir = std::filesystem::temp_directory_path() / ("gptc-auto-" + std::to_string(getpid()));
  for (const std::vector<std::string> &mesh :
       {std::vector<std::string>{"parallel.data=2"},
        {"parallel.data=2", "parallel.zero_stage=3"},
        {"parallel.data=2", "parallel.tensor=2"},
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
    Config config;
    Plan plan;
    compilePlan(request, config, plan);
    const Explanation e = explain(plan, 1e12);
    const bool chosen =
        llvm::any_of(e.decisions, [](const Decision &d) { return d.pass == "partition" && d.name == "zero_stage"; });
    EXPECT_EQ(chosen, !llvm::is_contained(mesh, "parallel.zero_stage=3")) << mesh.back();
    EXPECT_GT(e.decisions.size(), 5u) << mesh.back();
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
