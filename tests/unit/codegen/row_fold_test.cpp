#include "rows_and_sums.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

namespace gptc::test {
namespace {

std::vector<Tensor> onGpu(const Group &g, const std::vector<Tensor> &operands, const char *schedule = nullptr,
                          std::vector<std::pair<unsigned, unsigned>> inPlace = {}) {
  Options o{.target = cudaTarget("cuda:sm_90a"), .inPlace = std::move(inPlace), .compiled = false};
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

TEST(RowFold, WritesInPlace) {
  const RowsAndSums n = rowsAndSums()[0];
  const Group g = n.together();
  const std::vector<Tensor> operands = randomOperands(g, 6);
  expectSame(onGpu(g, operands, nullptr, {{0, 5}, {1, 6}, {2, 7}}), onGpu(g, operands), "the residual's, the sums'");
  expectSame(onGpu(g, operands, nullptr, {{0, 1}, {1, 2}}), onGpu(g, operands), "the input's, the weight's");
}

TEST(RowFold, TakesNoCpu) {
  const Group g = rowsAndSums()[0].together();
  EXPECT_THROW(defaultSchedule(*g.fused, hostTarget(1)), UserError);
}

}  // namespace
}  // namespace gptc::test
