// gptc explain --why of plans.
#include "tools/study/why.h"

#include "tools/compiler/compile.h"

#include "support.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

namespace gptc::estimate_test {
namespace {

Plan planOf(const std::vector<std::string> &more) {
  CompileRequest request;
  request.settings = {"name=t",
                      "model.n_layer=2",
                      "model.n_head=2",
                      "model.n_embd=64",
                      "model.vocab_size=65",
                      "model.block_size=64",
                      "train.micro_batch=2",
                      "train.global_batch_tokens=256"};
  request.settings.insert(request.settings.end(), more.begin(), more.end());
  request.planDir = testing::TempDir() + fmt::format("gptc-why-{}", ::getpid());
  Config config;
  Plan plan;
  compilePlan(request, config, plan);
  std::filesystem::remove_all(request.planDir);
  return plan;
}

TEST(WhyPlans, NamesTheKindOfWorkThatDiffers) {
  const Plan narrow = planOf({}), wide = planOf({"model.ffn_dim=2048"});
  const std::vector<std::string> lines = whySlower(wide, narrow);
  ASSERT_FALSE(lines.empty());
  for (const std::string &line : lines) {
    // Attention does as much in both.
    EXPECT_EQ(line.find("attention"), std::string::npos) << line;
    EXPECT_EQ(line.find_first_not_of(' '), line.find('+')) << line;
  }
  EXPECT_NE(lines[0].find("products: "), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find(" GB in "), std::string::npos) << lines[0];
  // The other way round the signs are.
  const std::vector<std::string> back = whySlower(narrow, wide);
  ASSERT_EQ(back.size(), lines.size());
  EXPECT_NE(back[0].find('-'), std::string::npos) << back[0];
  EXPECT_TRUE(whySlower(narrow, narrow).empty());
}

TEST(WhyPlans, TheOptimizerIsOneKindOfWorkWhereverItStands) {
  // In a function of its own behind several passes, or at the end of @train_step.
  const Plan passes = planOf({"train.micro_batch=1"}), one = planOf({"train.micro_batch=4"});
  for (const std::string &line : whySlower(passes, one))
    EXPECT_EQ(line.find(" in 0 kernels"), std::string::npos) << line;
}

TEST(WhyPlans, RecomputationIsMoreWork) {
  const Plan plain = planOf({"compile.remat=none"}), again = planOf({"compile.remat=full"});
  double sum = 0;
  for (const std::string &line : whySlower(again, plain))
    sum += std::stod(line);
  EXPECT_GT(sum, 0);
}

}  // namespace
}  // namespace gptc::estimate_test
