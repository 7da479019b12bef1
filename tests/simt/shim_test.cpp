// The shim itself: it must let right kernels pass and name what is wrong with others.
#include "simt.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

using namespace gptc::simt;

namespace {

// One text for all tests: compiling takes most of the time.
const char *const kText = R"cuda(#include "gptc_device.h"
GPTC_KERNEL(reversed, 64)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, part, 64);
  store(part, threadIndex(), load(x, blockIndex() * 64 + threadIndex()));
  barrier();
  store(y, blockIndex() * 64 + threadIndex(), load(part, 63 - threadIndex()));
}
GPTC_KERNEL(noBarrier, 64)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, part, 64);
  store(part, threadIndex(), load(x, blockIndex() * 64 + threadIndex()));
  store(y, blockIndex() * 64 + threadIndex(), load(part, 63 - threadIndex()));
}
GPTC_KERNEL(noSecondBarrier, 64)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, part, 64);
  store(part, threadIndex(), load(x, blockIndex() * 64 + threadIndex()));
  barrier();
  const float v = load(part, 63 - threadIndex());
  store(part, threadIndex(), v);
}
GPTC_KERNEL(unwritten, 64)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, part, 65);
  store(part, threadIndex(), 1.0f);
  barrier();
  store(y, threadIndex(), load(part, threadIndex() + 1));
}
GPTC_KERNEL(beyond, 64)(Global<const float> x, Global<float> y) {
  store(y, threadIndex(), load(x, threadIndex() + 65));
}
GPTC_KERNEL(before, 64)(Global<const float> x, Global<float> y) { store(y, threadIndex() - 1, 1.0f); }
GPTC_KERNEL(beyondShared, 64)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, part, 63);
  store(part, threadIndex(), 1.0f);
}
GPTC_KERNEL(beyondPrivate, 64)(Global<const float> x, Global<float> y) {
  GPTC_PRIVATE(float, acc, 2);
  store(acc, threadIndex() & 3, 1.0f);
}
GPTC_KERNEL(privateUnwritten, 64)(Global<const float> x, Global<float> y) {
  GPTC_PRIVATE(float, acc, 2);
  store(acc, 0, 1.0f);
  store(y, threadIndex(), load(acc, 1));
}
GPTC_KERNEL(misaligned, 64)(Global<const float> x, Global<float> y) {
  const auto v = loadVector<4>(x, threadIndex());
  store(y, threadIndex(), v.v[0]);
}
GPTC_KERNEL(blocksMeet, 64)(Global<const float> x, Global<float> y) { store(y, threadIndex(), 1.0f); }
GPTC_KERNEL(blocksRead, 64)(Global<const float> x, Global<float> y) {
  if (blockIndex() == 0)
    store(y, threadIndex(), 1.0f);
  else if (load(y, threadIndex()) != 0)
    store(y, 64 + threadIndex(), 1.0f);
}
GPTC_KERNEL(diverging, 64)(Global<const float> x, Global<float> y) {
  if (threadIndex() < 40)
    barrier();
}
GPTC_KERNEL(twoBarriers, 64)(Global<const float> x, Global<float> y) {
  if (threadIndex() < 32)
    barrier();
  else
    barrier(7);
}
GPTC_KERNEL(halfWarp, 64)(Global<const float> x, Global<float> y) {
  if (threadIndex() & 1)
    store(y, threadIndex(), shuffleXor(1.0f, 2));
}
GPTC_KERNEL(folded, 64)(Global<const float> x, Global<float> y) {
  float v = load(x, blockIndex() * 64 + threadIndex());
  for (int m = 16; m >= 1; m /= 2)
    v = v + shuffleXor(v, m);
  store(y, blockIndex() * 64 + threadIndex(), v);
}
GPTC_KERNEL(swapped, 64)(Global<const float> x, Global<float> y) {
  store(y, blockIndex() * 64 + threadIndex(), load(x, blockIndex() * 64 + (threadIndex() ^ 1)));
}
GPTC_KERNEL(exchanged, 64)(Global<const float> x, Global<float> y) {
  store(y, threadIndex(), load(y, threadIndex() ^ 1));
}
)cuda";
const std::vector<std::string> kKernels = {
    "reversed",     "noBarrier",     "noSecondBarrier",  "unwritten",  "beyond",     "before",
    "beyondShared", "beyondPrivate", "privateUnwritten", "misaligned", "blocksMeet", "blocksRead",
    "diverging",    "twoBarriers",   "halfWarp",         "folded",     "swapped",    "exchanged"};

class Shim : public testing::Test {
protected:
  static void SetUpTestSuite() {
    if (HostModule::possible())
      module = new HostModule(kText, kKernels);
  }
  static void TearDownTestSuite() {
    delete module;
    module = nullptr;
  }
  void SetUp() override {
    if (!module)
      GTEST_SKIP() << "no C++ compiler: set CXX";
    std::iota(x.begin(), x.end(), 0.f);
  }
  std::string run(const std::string &kernel, bool backwards = false, int blocks = 2) {
    return launch(module->find(kernel),
                  {{"x", x.data(), int64_t(x.size() * 4), false}, {"y", y.data(), int64_t(y.size() * 4), true}}, blocks,
                  64, backwards);
  }
  void expectFault(const std::string &kernel, const std::string &words, int blocks = 1) {
    for (bool backwards : {false, true}) {
      std::string found = run(kernel, backwards, blocks);
      EXPECT_NE(found.find(words), std::string::npos) << kernel << ": " << found;
    }
  }
  static HostModule *module;
  alignas(64) std::array<float, 128> x{}, y{};
};
HostModule *Shim::module = nullptr;

TEST_F(Shim, RunsBlocksThatMeetAtABarrier) {
  for (bool backwards : {false, true}) {
    y.fill(0);
    ASSERT_EQ(run("reversed", backwards), "");
    for (int i = 0; i < 128; ++i)
      EXPECT_EQ(y[i], float(i / 64 * 64 + 63 - i % 64));
  }
}

TEST_F(Shim, ShufflesWithinAWarp) {
  ASSERT_EQ(run("folded"), "");
  for (int i = 0; i < 128; ++i)
    EXPECT_EQ(y[i], float(i / 32 * 32 * 32 + 31 * 16));
}

TEST_F(Shim, FindsMissingBarriers) {
  expectFault("noBarrier", "of shared part, to which nobody has stored");
  expectFault("noSecondBarrier", "race: reads byte");
  expectFault("exchanged", "race: ");
}

TEST_F(Shim, FindsRacesBetweenBlocks) {
  EXPECT_EQ(run("blocksMeet", false, 1), "");
  expectFault("blocksMeet", "race: stores to byte", 2);
  EXPECT_NE(run("blocksRead").find("race: reads byte 0 of y"), std::string::npos);
  EXPECT_NE(run("blocksRead", true).find("race: stores to byte 252 of y, which thread 63 of block 1 read"),
            std::string::npos);
}

TEST_F(Shim, FindsAccessesOutOfBounds) {
  expectFault("beyond", "reads bytes");
  EXPECT_EQ(run("before"), "thread 0 of block 0: stores to bytes -4 to -1 of y, which has 512");
  expectFault("beyondShared", "stores to bytes 252 to 255 of part, which has 252");
  expectFault("beyondPrivate", "a private array is left");
  expectFault("misaligned", "is not aligned");
}

TEST_F(Shim, FindsReadsOfNothing) {
  expectFault("unwritten", "of shared part, to which nobody has stored");
  expectFault("privateUnwritten", "read before it is stored to");
}

TEST_F(Shim, FindsThreadsThatWaitForEver) {
  EXPECT_EQ(run("diverging").substr(0, 58), "block 0: 40 of 64 threads wait for ever, thread 0 at the b");
  expectFault("twoBarriers", "64 of 64 threads wait for ever");
  expectFault("halfWarp", "wait for ever");
}

TEST_F(Shim, RefusesStoresToWhatIsOnlyRead) {
  std::string found =
      launch(module->find("exchanged"), {{"x", x.data(), 512, false}, {"y", y.data(), 512, false}}, 1, 64);
  EXPECT_NE(found.find("stores to y, which is only read"), std::string::npos) << found;
}

TEST_F(Shim, SharedMemoryIsOneMemory) {
  // Under two names: x is read by one thread where y is stored to by another.
  EXPECT_EQ(run("swapped"), "");
  std::string found = launch(module->find("swapped"), {{"x", x.data(), 512, false}, {"y", x.data(), 512, true}}, 1, 64);
  EXPECT_NE(found.find("race: "), std::string::npos) << found;
}

}  // namespace
