// The optimizer on the host while all else is on a GPU: the bits of updates on the GPU, for one and for several.
#include "tests/support/rank_threads.h"

#include "ir/graph.h"
#include "standins.h"
#include "tests/support/harness.h"
#include "tests/support/whole_run.h"

namespace gptc::test {
namespace {

class OffloadTest : public testing::Test {
protected:
  static void SetUpTestSuite() { useStandins(); }

  static void expectTheSame(RankCut c, const std::string &what) {
    c.target = "cuda:sm_90a";
    const int steps = sized(2, 3);  // the second one is with moments
    const RanksOutcome want = train(c, steps);
    c.settings.push_back("parallel.offload=optimizer");
    setenv("GPTC_STANDIN_ORDER", "1", 1);  // the newest first
    const RanksOutcome got = train(c, steps);
    unsetenv("GPTC_STANDIN_ORDER");
    EXPECT_EQ(got.losses, want.losses) << what;
    for (const auto &[name, bytes] : want.states) {
      auto it = got.states.find(name);
      ASSERT_TRUE(it != got.states.end()) << what << ": " << name;
      EXPECT_TRUE(it->second == bytes) << what << ": " << name << " differs";
    }
    EXPECT_LT(want.losses.back(), want.losses[0]);
  }
};

TEST_F(OffloadTest, HasTheBitsOfUpdatesOnTheGpu) {
  expectTheSame({.data = 1, .microBatches = 4, .slot = 64}, "no group beside another in a slot");
  if (everything())
    expectTheSame({.data = 1, .microBatches = 1, .order = "fast", .compute = "bf16"}, "bf16, one micro-batch");
  expectTheSame({.data = 1, .microBatches = 4, .compute = "bf16", .settings = {"precision.optimizer_state=bf16"}},
                "moments in bf16");
}

TEST_F(OffloadTest, WithPiecesOfRanksToo) {
  expectTheSame({2, 1, 2, "tree", "bf16"}, "stage 1");
  expectTheSame({2, 3, 2}, "stage 3");
}

// gptrun: arenas, checkpoints that go on without, profiles.
TEST_F(OffloadTest, ACheckpointGoesOnEitherWay) {
  e2e::Workplace w;
  std::string plans[2];
  for (const bool offload : {false, true}) {
    const e2e::Result r =
        w.gptc({"compile", w.modelFile(), "-o", w.path(offload ? "host" : "gpu"), "--set", "compile.target=cuda:sm_90a",
                "--set", "compile.library_calls=off", "--set", "precision.compute=bf16", "--set", "train.steps=6",
                "--set", std::string("parallel.offload=") + (offload ? "optimizer" : "none")});
    ASSERT_EQ(r.code, 0) << r.output;
    EXPECT_EQ(r.output.find("pinned on the host") != std::string::npos, offload) << r.output;
    plans[offload] = w.path(offload ? "host" : "gpu");
  }
  ASSERT_EQ(w.gptrun({plans[0], "--out-dir", w.path("whole")}).code, 0);
  ASSERT_EQ(w.gptrun({plans[1], "--out-dir", w.path("parts"), "--steps", "3", "--profile"}).code, 0);
  ASSERT_EQ(w.gptrun({plans[0], "--out-dir", w.path("parts"), "--steps", "4"}).code, 0);
  const e2e::Result r = w.gptrun({plans[1], "--out-dir", w.path("parts")});
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_TRUE(w.finalState(w.path("parts")) == w.finalState(w.path("whole")));
  EXPECT_EQ(e2e::logLines(w.path("parts")), e2e::logLines(w.path("whole")));
}

}  // namespace
}  // namespace gptc::test
