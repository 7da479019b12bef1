// What `gptc compile` says of the run to come.
#include "tools/estimate/expected.h"

#include "codegen/codegen.h"
#include "passes/analysis/cost.h"
#include "support.h"
#include "tests/support/harness.h"
#include "tools/compiler/compile.h"

#include <gtest/gtest.h>

namespace gptc::estimate_test {
namespace {

TEST(Expected, DurationsReadLikeAPersonsNotes) {
  const std::pair<double, const char *> durations[] = {
      {0.00012, "0.1 ms"}, {0.0123, "12 ms"},     {0.107, "110 ms"},        {0.999, "1.0 s"},
      {1.26, "1.3 s"},     {99, "99 s"},          {150, "2.5 min"},         {2700, "45 min"},
      {5990, "100 min"},   {3600 * 5.0, "5.0 h"}, {86400 * 12.0, "12 days"}};
  for (auto &[seconds, text] : durations)
    EXPECT_EQ(roughly(seconds), text);
}

class ExpectedOfPlans : public testing::Test {
protected:
  e2e::Workplace w;
  /// Seconds of a step, and of the run behind it, by what was said.
  Plan plan(const std::vector<std::string> &settings, std::string &said) {
    std::vector<std::string> args = {"compile", w.modelFile(), "-o", w.path("plan")};
    for (const std::string &s : settings)
      args.insert(args.end(), {"--set", s});
    const e2e::Result r = w.gptc(args);
    EXPECT_EQ(r.code, 0) << r.output;
    const size_t at = r.output.find("\nexpected    about ");
    EXPECT_NE(at, std::string::npos) << r.output;
    said = at == std::string::npos ? "" : r.output.substr(at + 13, r.output.find('\n', at + 1) - at - 13);
    return loadPlan(w.path("plan"));
  }
};

TEST_F(ExpectedOfPlans, AStepIsItsKernelsAndARunIsItsStepsAndEvaluations) {
  std::string said;
  const Plan p = plan({"train.steps=1000", "eval.every=100", "eval.steps=2"}, said);
  const MachineRates rates = ratesOf(p.target);
  const Expected e = expectedOf(p, 1);
  EXPECT_NEAR(e.step, costOfStep(*p.planned, rates).seconds, 1e-9 * e.step);
  EXPECT_EQ(said, inWords(e, p));
  EXPECT_NE(said.find(" for 1000 steps, "), std::string::npos) << said;
  const double pass = costOf(*p.planned->function("eval"), rates).seconds;
  const double passes = 10 * 2 * double(p.planned->attrs.getInt("accumulate", 1));
  EXPECT_NEAR(e.run, 1000 * e.step + passes * pass, 1e-6 * e.run);
  EXPECT_GT(e.bytes, double(p.planned->attrs.getInt("arena_bytes")));
  Plan none = loadPlan(w.path("plan"));
  none.run.valData.clear();
  EXPECT_NEAR(expectedOf(none, 1).run, 1000 * e.step, 1e-6 * e.run);
}

TEST_F(ExpectedOfPlans, RanksShareTheCoresOfAMachine) {
  std::string said;
  const Plan p = plan({"parallel.data=2", "train.global_batch_tokens=128"}, said);
  EXPECT_EQ(said, inWords(expectedOf(p, 1), p));
  const Expected one = expectedOf(p, 1), two = expectedOf(p, 2);
  EXPECT_FALSE(one.network);
  EXPECT_TRUE(two.network);
  EXPECT_NE(inWords(two, p).find("without what goes over the network"), std::string::npos);
}

TEST(Expected, OfAGpuByItsDataSheet) {
  const Config config = readForForecast(sourceFile("examples/shakespeare-char.toml"),
                                        {"model.vocab_size=64", "compile.library_calls=off"}, 0, jeanZayWithGptc());
  Plan p;
  p.target = cudaTarget("cuda:sm_90a");
  p.planned = planModule(config, p.target, "", int64_t(1) << 62);
  p.run.steps = 10;
  EXPECT_NE(inWords(expectedOf(p, 1), p).find(" of the GPU and its context, on one like H100"), std::string::npos);
}

}  // namespace
}  // namespace gptc::estimate_test
