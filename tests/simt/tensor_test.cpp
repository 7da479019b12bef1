// Tensor cores and asynchronous copies in the shim: lane maps against the product and against each other, and faults.
#include "simt.h"

#include "codegen/codegen.h"
#include "codegen/cuda/nvrtc.h"
#include "ir/kernel/eval.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>

using namespace gptc::simt;
using namespace gptc;

namespace {

// x holds a[16][K] and behind it b[K][8] as stored, y gets c[16][8]: fragments element by element as the device layer
// says, then through shared memory and ldmatrix. b lies in the second half as b[8][K] once more.
const char *const kText = R"cuda(#include "gptc_device.h"
template <class T> GPTC_FUNCTION unsigned word16(Global<const T> x, int low, int high) {
  return (unsigned)readRaw(x, low).bits | (unsigned)readRaw(x, high).bits << 16;
}
template <class T> GPTC_FUNCTION void storeC(Global<float> y, const float (&c)[4]) {
  const int g = threadIndex() / 4, t = threadIndex() % 4;
  for (int i = 0; i < 4; ++i)
    store(y, (g + i / 2 * 8) * 8 + 2 * t + i % 2, c[i]);
}
template <class T> GPTC_FUNCTION void byElement(Global<const T> x, Global<float> y) {
  const int g = threadIndex() / 4, t = threadIndex() % 4;
  unsigned a[4], b[2];
  float c[4] = {1, 2, 3, 4};
  for (int i = 0; i < 4; ++i) {
    const int at = (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
    a[i] = word16<T>(x, at, at + 1);
  }
  for (int i = 0; i < 2; ++i)
    b[i] = word16<T>(x, 256 + (2 * t + i * 8) * 8 + g, 256 + (2 * t + i * 8 + 1) * 8 + g);
  mma(T{}, c, a, b);
  storeC<T>(y, c);
}
template <class T> GPTC_FUNCTION void byMatrix(Global<const T> x, Global<float> y) {
  GPTC_SHARED(T, tile, 512);
  const int lane = threadIndex(), r = lane % 8, m = lane / 8;
  for (int i = lane; i < 512; i += 32)
    writeRaw(tile, i, readRaw(x, i));
  barrier();
  SharedView<T> rowsOfA = sharedView<T>(tile, 0), rowsOfB = sharedView<T>(tile, 512);
  SharedView<T> columns = sharedView<T>(tile, 768);
  unsigned a[4], b[4], other[4];
  float c[4] = {1, 2, 3, 4};
  loadMatrices(a, rowsOfA, (r + m % 2 * 8) * 16 + m / 2 * 8);
  loadMatricesTransposed(b, rowsOfB, (r + m % 2 * 8) * 8);
  loadMatrices(other, columns, r * 16 + m % 2 * 8);
  const unsigned first[2] = {b[0], b[1]};
  mma(T{}, c, a, first);
  if (b[0] != other[0] || b[1] != other[1])
    c[0] = -1;
  storeC<T>(y, c);
}
GPTC_KERNEL(elementsOfBF16, 32)(Global<const bf16> x, Global<float> y) { byElement(x, y); }
GPTC_KERNEL(elementsOfF16, 32)(Global<const f16> x, Global<float> y) { byElement(x, y); }
GPTC_KERNEL(matricesOfBF16, 32)(Global<const bf16> x, Global<float> y) { byMatrix(x, y); }
GPTC_KERNEL(matricesOfF16, 32)(Global<const f16> x, Global<float> y) { byMatrix(x, y); }

GPTC_KERNEL(tf32, 32)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, tile, 256);
  const int lane = threadIndex(), g = lane / 4, t = lane % 4, m = lane / 8;
  for (int i = lane; i < 256; i += 32)
    store(tile, i, load(x, i));
  barrier();
  unsigned a[4], b[2];
  float c[4] = {1, 2, 3, 4};
  SharedView<float> view = sharedView<float>(tile, 0);
  loadMatrices(a, view, (lane % 8 + m % 2 * 8) * 8 + m / 2 * 4);
  for (int i = 0; i < 4; ++i)
    if (a[i] != bitsOf(load(x, (g + i % 2 * 8) * 8 + t + i / 2 * 4)))
      c[0] = -1;
  for (int i = 0; i < 2; ++i)
    b[i] = roundTF32(load(x, 128 + (t + i * 4) * 8 + g));
  mma(0.0f, c, a, b);
  storeC<float>(y, c);
}
GPTC_KERNEL(halfOfAWarp, 32)(Global<const float> x, Global<float> y) {
  unsigned a[4] = {}, b[2] = {};
  float c[4] = {};
  if (threadIndex() < 16)
    mma(bf16{}, c, a, b);
}
GPTC_KERNEL(rowOffItsPlace, 32)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, tile, 256);
  for (int i = threadIndex(); i < 256; i += 32)
    store(tile, i, 0.0f);
  barrier();
  unsigned a[4];
  loadMatrices(a, sharedView<float>(tile, 0), threadIndex() * 4 + 1);
}

// Two stages of 32 pieces of 16 bytes; each thread reads what its neighbour has copied.
template <int WAIT, bool MEET> GPTC_FUNCTION void staged(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, stage, 256);
  SharedView<float> to = sharedView<float>(stage, 0);
  const int thread = threadIndex();
  for (int s = 0; s < 2; ++s) {
    asyncCopy<16>(to, s * 128 + thread * 4, x, s * 128 + thread * 4, s ? 8 : 16);
    asyncCommit();
  }
  for (int s = 0; s < 2; ++s) {
    s ? asyncWait<0>() : asyncWait<WAIT>();
    if (MEET)
      barrier();
    const auto v = loadVector<4>(to, s * 128 + (thread ^ 1) * 4);
    storeVector<4>(y, s * 128 + thread * 4, v);
  }
}
GPTC_KERNEL(pipeline, 32)(Global<const float> x, Global<float> y) { staged<1, true>(x, y); }
GPTC_KERNEL(waitsTooLittle, 32)(Global<const float> x, Global<float> y) { staged<2, true>(x, y); }
GPTC_KERNEL(doesNotMeet, 32)(Global<const float> x, Global<float> y) { staged<1, false>(x, y); }
GPTC_KERNEL(doesNotCommit, 32)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, stage, 128);
  SharedView<float> to = sharedView<float>(stage, 0);
  asyncCopy<4>(to, threadIndex(), x, threadIndex(), 4);
  asyncWait<0>();
  store(y, threadIndex(), load(stage, threadIndex()));
}
GPTC_KERNEL(storesBelowACopy, 32)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, stage, 128);
  SharedView<float> to = sharedView<float>(stage, 0);
  asyncCopy<8>(to, threadIndex() * 2, x, threadIndex() * 2, 8);
  store(stage, threadIndex() * 2 + 1, 0.0f);
}
GPTC_KERNEL(neverWaits, 32)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, stage, 128);
  SharedView<float> to = sharedView<float>(stage, 0);
  asyncCopy<4>(to, threadIndex(), x, threadIndex(), 4);
  asyncCommit();
}
GPTC_KERNEL(copiesFromOddPlaces, 32)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, stage, 256);
  SharedView<float> to = sharedView<float>(stage, 0);
  asyncCopy<16>(to, threadIndex() * 4, x, threadIndex() + 1, 16);
  asyncCommit();
  asyncWait<0>();
}
GPTC_KERNEL(copiesFromBeyond, 32)(Global<const float> x, Global<float> y) {
  GPTC_SHARED(float, stage, 256);
  SharedView<float> to = sharedView<float>(stage, 0);
  asyncCopy<16>(to, threadIndex() * 4, x, 252 + threadIndex() * 4, 16);
  asyncCommit();
  asyncWait<0>();
}
)cuda";
const std::vector<std::string> kKernels = {
    "elementsOfBF16",      "elementsOfF16",    "matricesOfBF16",  "matricesOfF16", "tf32",          "halfOfAWarp",
    "rowOffItsPlace",      "pipeline",         "waitsTooLittle",  "doesNotMeet",   "doesNotCommit", "neverWaits",
    "copiesFromOddPlaces", "copiesFromBeyond", "storesBelowACopy"};

class Tensor : public testing::Test {
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
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = float(int(i * 37 % 61) - 30) / 4;
  }
  std::string run(const std::string &kernel, const void *from, int64_t bytes, bool backwards = false) {
    y.fill(NAN);
    return launch(module->find(kernel),
                  {{"x", const_cast<void *>(from), bytes, false}, {"y", y.data(), int64_t(y.size() * 4), true}}, 1, 32,
                  backwards);
  }
  std::string run(const std::string &kernel, bool backwards = false) { return run(kernel, x.data(), 1024, backwards); }
  void expectFault(const std::string &kernel, const std::string &words) {
    for (bool backwards : {false, true}) {
      std::string found = run(kernel, backwards);
      EXPECT_NE(found.find(words), std::string::npos) << kernel << ": " << found;
    }
  }
  /// y against a product of small numbers, which no rounding touches.
  void expectProduct(int steps, const std::string &what) {
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 8; ++j) {
        float want = float(1 + i / 8 * 2 + j % 2);
        for (int k = 0; k < steps; ++k)
          want += x[i * steps + k] * x[16 * steps + k * 8 + j];
        EXPECT_EQ(y[i * 8 + j], want) << what << " " << i << " " << j;
      }
  }
  static HostModule *module;
  alignas(64) std::array<float, 512> x{};
  alignas(64) std::array<float, 256> y{};
};
HostModule *Tensor::module = nullptr;

TEST_F(Tensor, FragmentsAreThoseOfTheIsa) {
  for (const char *type : {"BF16", "F16"}) {
    alignas(64) std::array<uint16_t, 512> stored;
    for (int i = 0; i < 384; ++i)
      stored[i] = *type == 'B' ? kir::bitsOfBF16(x[i]) : kir::bitsOfF16(x[i]);
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < 8; ++j)
        stored[384 + j * 16 + k] = stored[256 + k * 8 + j];
    for (const char *how : {"elementsOf", "matricesOf"})
      for (bool backwards : {false, true}) {
        const std::string kernel = std::string(how) + type;
        ASSERT_EQ(run(kernel, stored.data(), sizeof stored, backwards), "");
        expectProduct(16, kernel);
      }
  }
  ASSERT_EQ(run("tf32"), "");
  expectProduct(8, "tf32");
}

TEST_F(Tensor, OperationsNeedTheWholeWarp) { expectFault("halfOfAWarp", "16 of 32 threads wait for ever"); }

TEST_F(Tensor, CopiesArriveWhenWaitedFor) {
  for (bool backwards : {false, true}) {
    ASSERT_EQ(run("pipeline", backwards), "");
    for (int i = 0; i < 256; ++i)
      EXPECT_EQ(y[i], i >= 128 && i % 4 >= 2 ? 0 : x[(i / 4 ^ 1) * 4 + i % 4]) << i;
  }
}

TEST_F(Tensor, FindsWrongCopies) {
  expectFault("waitsTooLittle", "of stage, where a copy is under way");
  expectFault("doesNotMeet", "of shared stage, to which nobody has stored");
  expectFault("doesNotCommit", "of stage, where a copy is under way");
  expectFault("storesBelowACopy", "of stage, where a copy is under way");
  expectFault("neverWaits", "ends while copies to stage are under way");
  expectFault("copiesFromOddPlaces", "of x is not aligned");
  expectFault("copiesFromBeyond", "of x, which has 1024");
  expectFault("rowOffItsPlace", "of tile is not aligned");
}

TEST_F(Tensor, StepsRoundTowardsZeroWithinTheirBound) {
  const float a[2] = {1, 0x1p-24f}, b[2] = {1, 1};
  EXPECT_EQ(kir::evalMma(0, a, b, 2), 1.0f);
  EXPECT_EQ(kir::evalMma(-2, a, b, 2), -0x1.fffffep-1f);
  EXPECT_GE(kir::mmaError(1 + 0x1p-24, 2), 0x1p-24);
  EXPECT_EQ(kir::roundTF32(1 + 0x1p-11f), 1 + 0x1p-10f);
  EXPECT_EQ(kir::roundTF32(-1 - 0x1p-12f), -1.0f);
  EXPECT_EQ(kir::roundTF32(INFINITY), INFINITY);
}

TEST_F(Tensor, TheSameTextCompilesForGpus) {
  std::string why;
  const Nvrtc *nvrtc = Nvrtc::find(why);
  if (!nvrtc)
    GTEST_SKIP() << why;
  for (const char *arch : {"cuda:sm_80", "cuda:sm_120"})
    EXPECT_EQ(nvrtc->compile(kText, cudaTarget(arch)).spilledBytes, 0);
  const std::string text = kText;  // without what needs bf16 or tf32
  const std::string f16 = text.substr(0, text.find("GPTC_KERNEL(elementsOfBF16")) +
                          "GPTC_KERNEL(k, 32)(Global<const f16> x, Global<float> y) { byMatrix(x, y); }\n" +
                          text.substr(text.find("// Two stages"));
  EXPECT_FALSE(nvrtc->compile(f16, cudaTarget("cuda:sm_75")).cubin.empty());
}

}  // namespace
