// The classifier in chunks computes the same; in the interpreter up to the rounding of its own sums, which know no
// blocks. tests/e2e/remat_test.cpp compares bits of emitted code.
#include "small_gpt.h"

#include "passes/chunk_classifier.h"

#include <cmath>

namespace gptc::test {
namespace {

class Chunks : public testing::TestWithParam<SmallGpt> {};

TEST_P(Chunks, KeepTheMeaningOfTwoSteps) {
  SmallGpt o = GetParam();
  auto m = smallGpt(o);
  runPasses(*m, "autodiff,optimizer,canonicalize,cse,dce,fuse,order");
  auto twoSteps = [&] {
    StateMap state = initialState(*m);
    std::vector<double> all;
    for (int step = 0; step < 2; ++step)
      for (const Tensor &t : trainStep(*m, o, o.batch * o.accumulate, state))
        all.insert(all.end(), t.data.begin(), t.data.end());
    for (const auto &s : m->states)
      all.insert(all.end(), state[s->name].data.begin(), state[s->name].data.end());
    return all;
  };
  const std::vector<double> expected = twoSteps();
  EXPECT_FALSE(chunkClassifier(*m, 3));
  ASSERT_TRUE(chunkClassifier(*m, 2));
  EXPECT_EQ(verify(*m), std::vector<std::string>());
  const std::vector<double> now = twoSteps();
  ASSERT_EQ(now.size(), expected.size());
  for (size_t i = 0; i < now.size(); ++i)
    ASSERT_NEAR(now[i], expected[i], 1e-11 * (1 + std::abs(expected[i]))) << i;
  runPasses(*m, "settle-writes,plan-memory");
}

INSTANTIATE_TEST_SUITE_P(Models, Chunks,
                         testing::Values(SmallGpt{}, SmallGpt{.batch = 4, .accumulate = 2},
                                         SmallGpt{.batch = 2, .tied = false}));

}  // namespace
}  // namespace gptc::test
