#include "rows_and_sums.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

namespace gptc::test {
namespace {

std::vector<Tensor> onGpu(const Group &g, const std::vector<Tensor> &operands, const char *schedule = nullptr) {
  Options o{.target = cudaTarget("cuda:sm_90a"), .compiled = false};
  if (schedule) {
    o.schedule.emplace();
    EXPECT_TRUE(Schedule::parse(schedule, *o.schedule));
  }
  return run(g, operands, o);
}

TEST(RowFold, HasTheBitsOfTwoGroups) {
  for (const RowsAndSums &n : rowsAndSums()) {
    const Group g = n.together();
    const std::vector<Tensor> operands = randomOperands(g, 5);
    std::vector<Tensor> apart = onGpu(n.rows(), operands), sums = onGpu(n.sums(), operands);
    apart.insert(apart.end(), sums.begin(), sums.end());
    expectSame(onGpu(g, operands), apart, "default schedule");
    for (const char *schedule : {"row_fold vec=64 threads=64", "row_fold vec=64 threads=128"})
      expectSame(onGpu(g, operands, schedule), apart, schedule);
  }
}

TEST(RowFold, RefusesWhatRowsAndSumsCannotGive) {
  auto refused = [](const char *args, const char *body) {
    const Group g = group("row_fold", args, body);
    return !groupProblem(*g.fused).empty();
  };
  const char *args = "%d: f32[4,16,64]; %x: f32[4,16,64]; %g: f32[64]; %r: f32[4,16]";
  const std::string sum = "%s = rmsnorm_grad_params %d, %x, %r {fold=16} : f32[64]\n",
                    row = "%y = rmsnorm_grad %d, %x, %g, %r : f32[4,16,64]\n";
  EXPECT_FALSE(refused(args, (sum + row + "yield %s, %y").c_str()));
  EXPECT_TRUE(refused(args, (row + "yield %y").c_str())) << "no sum over tokens";
  EXPECT_TRUE(refused(args, (sum + row + "yield %y").c_str())) << "a sum that nobody takes";
  EXPECT_TRUE(refused(args, (sum + "yield %s").c_str())) << "no rows";
  EXPECT_TRUE(refused(args, (sum + row + "%t = softmax %s : f32[64]\nyield %t, %y").c_str())) << "a row of sums";
  EXPECT_TRUE(refused(args, (sum + "%y = rmsnorm_grad %d, %x, %s, %r : f32[4,16,64]\nyield %s, %y").c_str()))
      << "rows that need the sum";
  EXPECT_TRUE(refused(args, (sum + row + "%z = reshape %y : f32[64,64]\nyield %s, %z").c_str())) << "another shape";
  EXPECT_TRUE(refused("%d: f32[8,12,64]; %x: f32[8,12,64]; %g: f32[64]; %r: f32[8,12]",
                      "%s = rmsnorm_grad_params %d, %x, %r {fold=12} : f32[64]\n"
                      "%y = rmsnorm_grad %d, %x, %g, %r : f32[8,12,64]\nyield %s, %y"))
      << "blocks that no batch divides";
}

TEST(RowFold, TakesNoCpu) {
  const Group g = rowsAndSums()[0].together();
  EXPECT_THROW(defaultSchedule(*g.fused, hostTarget(1)), UserError);
}

}  // namespace
}  // namespace gptc::test
