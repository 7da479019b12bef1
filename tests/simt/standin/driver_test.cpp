// The driver's table against the stand-in: what it runs, in which order, and what it refuses. That the stand-in refuses
// is what makes the tests of whole plans mean something.
#include "standins.h"

#include "support/diagnostics.h"

#include <array>
#include <cmath>
#include <cstring>
#include <functional>

namespace gptc::test {
namespace {

using namespace cuda;

constexpr int kElements = 1024;
// y = 2 x; and y = y + x, by elements.
const char *const kText = R"(#include "gptc_device.h"
GPTC_KERNEL(twice, 128)(Global<const float> x, Global<float> y) {
  const int i = blockIndex() * 128 + threadIndex();
  store(y, i, 2.0f * load(x, i));
}
GPTC_KERNEL(add, 128)(Global<const float> x, Global<float> y) {
  const int i = blockIndex() * 128 + threadIndex();
  store(y, i, load(y, i) + load(x, i));
}
)";

class DriverTest : public testing::Test {
protected:
  static void SetUpTestSuite() {
    useStandins();
    d = &Driver::get();
    image = Nvrtc::get().compile(kText, cudaTarget("cuda:sm_90a")).cubin;
  }
  void SetUp() override {
    ASSERT_EQ(d->primaryContextRetain(&context, 0), success);
    ASSERT_EQ(d->contextSetCurrent(context), success);
    ASSERT_EQ(d->streamCreate(&s, streamNonBlocking), success);
    ASSERT_EQ(d->streamCreate(&other, streamNonBlocking), success);
    ASSERT_EQ(d->eventCreate(&e, eventDisableTiming), success);
    ASSERT_EQ(d->eventCreate(&joined, eventDisableTiming), success);
    ASSERT_EQ(d->moduleLoadData(&module, image.data()), success);
    ASSERT_EQ(d->moduleGetFunction(&twice, module, "twice"), success);
    ASSERT_EQ(d->moduleGetFunction(&add, module, "add"), success);
    for (DevicePtr *p : {&x, &y, &z})
      ASSERT_EQ(d->memAlloc(p, kElements * 4), success);
    void *at = nullptr;
    ASSERT_EQ(d->memHostAlloc(&at, kElements * 4, 0), success);
    host = static_cast<float *>(at);
    for (int i = 0; i < kElements; ++i)
      host[i] = float(i);
  }
  void TearDown() override {
    EXPECT_EQ(d->streamSynchronize(s), success);
    EXPECT_EQ(d->streamSynchronize(other), success);
    for (DevicePtr p : {x, y, z})
      EXPECT_EQ(d->memFree(p), success);
    EXPECT_EQ(d->memFreeHost(host), success);
    EXPECT_EQ(d->moduleUnload(module), success);
    EXPECT_EQ(d->eventDestroy(e), success);
    EXPECT_EQ(d->eventDestroy(joined), success);
    EXPECT_EQ(d->streamDestroy(s), success);
    EXPECT_EQ(d->streamDestroy(other), success);
  }

  Result launch(LoadedFunction f, DevicePtr from, DevicePtr to, Stream in, unsigned threads = 128) {
    void *params[] = {&from, &to};
    return d->launchKernel(f, kElements / 128, 1, 1, threads, 1, 1, 0, in, params, nullptr);
  }
  std::string reason(Result r) { return d->describe(r); }

  static const Driver *d;
  static std::string image;
  Context context;
  Stream s, other;
  Event e, joined;
  LoadedModule module;
  LoadedFunction twice, add;
  DevicePtr x, y, z;
  float *host;
};
const Driver *DriverTest::d;
std::string DriverTest::image;

TEST_F(DriverTest, RunsAKernelWhenSomebodyWaits) {
  ASSERT_EQ(d->copyToDevice(x, host, kElements * 4, s), success);
  ASSERT_EQ(launch(twice, x, y, s), success);
  ASSERT_EQ(d->copyToHost(host, y, kElements * 4, s), success);
  EXPECT_EQ(host[3], 3);  // not yet
  ASSERT_EQ(d->streamSynchronize(s), success);
  for (int i = 0; i < kElements; ++i)
    ASSERT_EQ(host[i], 2.0f * i);
}

TEST_F(DriverTest, ReadsPinnedMemoryLate) {
  ASSERT_EQ(d->copyToDevice(x, host, kElements * 4, s), success);
  host[3] = 50;  // too early for who means 3
  std::array<float, kElements> back;
  ASSERT_EQ(d->copyToHost(back.data(), x, kElements * 4, s), success);  // not pinned: waits
  EXPECT_EQ(back[3], 50);
}

TEST_F(DriverTest, NewMemoryHoldsNaN) {
  ASSERT_EQ(d->copyToHost(host, x, kElements * 4, s), success);
  ASSERT_EQ(d->streamSynchronize(s), success);
  EXPECT_NE(host[0], host[0]);
}

// Of two streams that nothing orders either may go first; in 64 tries both happen.
TEST_F(DriverTest, OrdersStreamsByEventsOnly) {
  for (bool ordered : {false, true}) {
    int seen[2] = {0, 0};
    for (int i = 0; i < 64; ++i) {
      ASSERT_EQ(d->memsetBytes(x, 0, kElements * 4, s), success);
      ASSERT_EQ(d->streamSynchronize(s), success);
      ASSERT_EQ(d->memsetBytes(x, 1, kElements * 4, s), success);
      ASSERT_EQ(d->eventRecord(e, s), success);
      if (ordered) {
        ASSERT_EQ(d->streamWaitEvent(other, e, 0), success);
      }
      ASSERT_EQ(d->copyToHost(host, x, kElements * 4, other), success);
      ASSERT_EQ(d->streamSynchronize(other), success);
      ++seen[host[0] == 0];
      ASSERT_EQ(d->streamSynchronize(s), success);
    }
    EXPECT_EQ(seen[0] > 0, true);
    EXPECT_EQ(seen[1] > 0, !ordered);
  }
}

TEST_F(DriverTest, CapturesAGraphWithTwoBranches) {
  Graph graph;
  GraphExec exec;
  ASSERT_EQ(d->streamBeginCapture(s, captureGlobal), success);
  ASSERT_EQ(d->copyToDevice(x, host, kElements * 4, s), success);
  ASSERT_EQ(d->eventRecord(e, s), success);
  ASSERT_EQ(d->streamWaitEvent(other, e, 0), success);
  ASSERT_EQ(launch(twice, x, y, s), success);
  ASSERT_EQ(launch(twice, x, z, other), success);
  ASSERT_EQ(d->eventRecord(joined, other), success);
  ASSERT_EQ(d->streamWaitEvent(s, joined, 0), success);
  ASSERT_EQ(launch(add, z, y, s), success);
  ASSERT_EQ(d->copyToHost(host, y, kElements * 4, s), success);
  ASSERT_EQ(d->streamEndCapture(s, &graph), success);
  ASSERT_EQ(d->graphInstantiate(&exec, graph, 0), success);
  ASSERT_EQ(d->graphDestroy(graph), success);
  EXPECT_EQ(host[3], 3);
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(d->graphLaunch(exec, s), success);
  ASSERT_EQ(d->streamSynchronize(s), success);
  EXPECT_EQ(host[3], 3 * 4 * 4 * 4);
  ASSERT_EQ(d->graphExecDestroy(exec), success);
  EXPECT_EQ(d->graphLaunch(exec, s), invalidHandle);
}

TEST_F(DriverTest, RefusesWhatEndsACapture) {
  Graph graph;
  DevicePtr p;
  const std::pair<const char *, std::function<Result()>> calls[] = {
      {"waiting", [&] { return d->streamSynchronize(s); }},
      {"memory", [&] { return d->memAlloc(&p, 16); }},
      {"module", [&] { return d->moduleLoadData(&module, image.data()); }},
  };
  for (auto &[what, call] : calls) {
    ASSERT_EQ(d->streamBeginCapture(s, captureGlobal), success);
    EXPECT_EQ(call(), captureUnsupported) << what;
    EXPECT_EQ(d->streamEndCapture(s, &graph), captureInvalidated) << what;
  }
  ASSERT_EQ(d->streamBeginCapture(s, captureGlobal), success);
  float ordinary[4];
  EXPECT_EQ(d->copyToHost(ordinary, x, 16, s), captureUnsupported);
  ASSERT_EQ(d->eventRecord(e, s), success);
  EXPECT_EQ(d->eventSynchronize(e), capturedEvent);
  EXPECT_EQ(d->streamBeginCapture(s, captureGlobal), invalidValue);
  EXPECT_EQ(d->streamEndCapture(other, &graph), captureUnmatched);
  ASSERT_EQ(d->streamWaitEvent(other, e, 0), success);
  ASSERT_EQ(launch(twice, x, y, other), success);
  EXPECT_EQ(d->streamEndCapture(s, &graph), captureUnjoined);
}

TEST_F(DriverTest, RefusesWrongHandles) {
  EXPECT_EQ(launch(twice, x, y, reinterpret_cast<Stream>(e)), invalidHandle);
  EXPECT_EQ(launch(reinterpret_cast<LoadedFunction>(s), x, y, s), invalidHandle);
  EXPECT_EQ(d->eventRecord(e, nullptr), invalidHandle);
  Stream gone;
  ASSERT_EQ(d->streamCreate(&gone, streamNonBlocking), success);
  ASSERT_EQ(d->streamDestroy(gone), success);
  EXPECT_EQ(launch(twice, x, y, gone), invalidHandle);
  LoadedFunction none;
  EXPECT_EQ(d->moduleGetFunction(&none, module, "thrice"), notFound);
  ASSERT_EQ(d->contextSetCurrent(nullptr), success);
  EXPECT_EQ(d->streamSynchronize(s), invalidContext);
  ASSERT_EQ(d->contextSetCurrent(context), success);
}

TEST_F(DriverTest, RefusesLaunchesBeyondTheLimits) {
  EXPECT_EQ(launch(twice, x, y, s, 256), launchOutOfResources) << "launch bounds say 128";
  EXPECT_EQ(launch(twice, x, y, s, 2048), invalidValue);
  EXPECT_EQ(launch(twice, x, y, s, 0), invalidValue);
  DevicePtr from = x, to = y;
  void *params[] = {&from, &to};
  EXPECT_EQ(d->launchKernel(twice, 1, 1, 1, 128, 1, 1, 64 << 10, s, params, nullptr), invalidValue);
  ASSERT_EQ(d->functionSetAttribute(twice, functionMaxDynamicShared, 64 << 10), success);
  EXPECT_EQ(d->launchKernel(twice, 1, 1, 1, 128, 1, 1, 64 << 10, s, params, nullptr), success);
  EXPECT_EQ(d->functionSetAttribute(twice, functionMaxDynamicShared, 1 << 20), invalidValue);
}

TEST_F(DriverTest, RefusesMemoryThatIsNotThere) {
  EXPECT_EQ(d->copyToDevice(x + 4096, host, kElements * 4, s), invalidValue);
  EXPECT_EQ(d->copyToDevice(x, host, kElements * 4 + 1, s), invalidValue);
  EXPECT_EQ(d->memFree(x + 16), invalidValue);
  size_t available = 0, total = 0;
  ASSERT_EQ(d->memGetInfo(&available, &total), success);
  DevicePtr p;
  EXPECT_EQ(d->memAlloc(&p, available + 1), outOfMemory);
  EXPECT_EQ(d->moduleLoadData(&module, "no image"), invalidImage);
}

// As the tests that perturb functions take for granted.
TEST_F(DriverTest, PerturbedFunctionsAreOffByTwoUlps) {
  const std::string text = "#include \"gptc_device.h\"\n"
                           "GPTC_KERNEL(exps, 128)(Global<const double> x, Global<double> y) {\n"
                           "  store(y, threadIndex(), exp(load(x, threadIndex())));\n}\n"
                           "GPTC_KERNEL(powers, 128)(Global<const float> x, Global<float> y) {\n"
                           "  store(y, threadIndex(), exp2Approximate(load(x, threadIndex())));\n}\n";
  setenv("GPTC_STANDIN_PERTURB", "1", 1);
  const std::string off = Nvrtc::get().compile(text, cudaTarget("cuda:sm_90a")).cubin;
  unsetenv("GPTC_STANDIN_PERTURB");
  LoadedModule m;
  LoadedFunction exps;
  ASSERT_EQ(d->moduleLoadData(&m, off.data()), success);
  ASSERT_EQ(d->moduleGetFunction(&exps, m, "exps"), success);
  std::array<double, 128> in, out;
  for (size_t i = 0; i < in.size(); ++i)
    in[i] = double(i) / 16;
  ASSERT_EQ(d->copyToDevice(x, in.data(), sizeof in, s), success);
  void *params[] = {&x, &y};
  ASSERT_EQ(d->launchKernel(exps, 1, 1, 1, 128, 1, 1, 0, s, params, nullptr), success);
  ASSERT_EQ(d->copyToHost(out.data(), y, sizeof out, s), success);
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_NE(out[i], std::exp(in[i]));
    EXPECT_NEAR(out[i], std::exp(in[i]), 0x1p-50 * std::exp(in[i]));
  }
  // 2^v of attention's tensor cores, exact for 0.
  LoadedFunction powers;
  ASSERT_EQ(d->moduleGetFunction(&powers, m, "powers"), success);
  std::array<float, 128> exponents, is;
  for (size_t i = 0; i < exponents.size(); ++i)
    exponents[i] = -float(i) / 16;
  ASSERT_EQ(d->copyToDevice(x, exponents.data(), sizeof exponents, s), success);
  ASSERT_EQ(d->launchKernel(powers, 1, 1, 1, 128, 1, 1, 0, s, params, nullptr), success);
  ASSERT_EQ(d->copyToHost(is.data(), y, sizeof is, s), success);
  EXPECT_EQ(is[0], 1);
  for (size_t i = 1; i < exponents.size(); ++i) {
    const float want = std::exp2(exponents[i]);
    EXPECT_NE(is[i], want);
    EXPECT_NEAR(is[i], want, 0x1p-22 * want);
  }
  ASSERT_EQ(d->moduleUnload(m), success);
}

// What a kernel does wrong shows when somebody waits, and stays.
TEST_F(DriverTest, KeepsTheErrorOfAKernel) {
  auto fails = [](auto call, const char *why) {
    EXPECT_EXIT(
        {
          const Result r = call();
          fmt::print(stderr, "{}\n", d->describe(r));
          std::_Exit(r != success && d->streamSynchronize(nullptr) == r ? 0 : 1);
        },
        testing::ExitedWithCode(0), why);
  };
  fails([&] { return launch(twice, x + 8, y, s), d->streamSynchronize(s); }, "not aligned to 16");
  fails([&] { return launch(twice, x, x + (1 << 20), s), d->streamSynchronize(s); }, "is not allocated");
  fails([&] { return launch(twice, x + 2048, y, s), d->streamSynchronize(s); }, "reads bytes 2048 to 2051");
  fails(
      [&] {
        void *params[] = {&x, &y};
        d->launchKernel(twice, 9, 1, 1, 128, 1, 1, 0, s, params, nullptr);
        return d->streamSynchronize(s);
      },
      "of parameter 0, which has 4096");
}

// As tests of what reports such faults plant them.
TEST_F(DriverTest, PlantsFaults) {
  auto with = [&](const char *fault, auto body) {
    EXPECT_EXIT(
        {
          setenv("GPTC_STANDIN_FAULT", fault, 1);
          d->copyToDevice(x, host, kElements * 4, s);
          d->memsetBytes(z, 0, kElements * 4, s);
          if (d->streamSynchronize(s) != success)
            std::_Exit(2);
          std::_Exit(body() ? 0 : 1);
        },
        testing::ExitedWithCode(0), "")
        << fault;
  };
  with("fail:wic", [&] {
    return launch(twice, x, y, s) == success && d->streamSynchronize(s) == illegalAddress &&
           reason(illegalAddress).find("twice: was told") != std::string::npos &&
           d->streamSynchronize(other) == illegalAddress;
  });
  with("hang:twice", [&] {
    Result r = launch(twice, x, y, s) ? success : d->eventRecord(e, s) ? success : notReady;
    for (int i = 0; i < 100 && r == notReady; ++i)
      r = d->eventQuery(e);
    return r == notReady && d->streamSynchronize(other) == success;
  });
  with("corrupt:twice", [&] {
    DevicePtr to = z + 512;
    void *params[] = {&x, &to};
    d->launchKernel(twice, 7, 1, 1, 128, 1, 1, 0, s, params, nullptr);
    d->copyToHost(host, z, kElements * 4, s);
    const bool quiet = d->streamSynchronize(s) == success;
    auto spoilt = [&](int i) { return host[i] != host[i]; };
    return quiet && host[123] == 0 && spoilt(124) && spoilt(128) && spoilt(131) && host[132] == 2 * 4;
  });
  with("hang:twice", [&] { return launch(add, x, z, s) == success && d->streamSynchronize(s) == success; });
  with("burn:twice", [&] { return launch(twice, x, y, s) == invalidValue; });
}

// A plan that fits the architecture it was made for need not fit a later one of the same major version.
TEST_F(DriverTest, BlocksHaveTheSharedMemoryOfTheirArchitecture) {
  for (int arch : {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121}) {
    const std::string number = std::to_string(arch);
    setenv("GPTC_STANDIN_ARCH", number.c_str(), 1);
    int bytes = 0;
    EXPECT_EQ(d->deviceGetAttribute(&bytes, maxSharedPerBlockOptin, 0), success);
    EXPECT_EQ(bytes, cudaTarget("cuda:sm_" + number).sharedBytes) << number;
    EXPECT_EQ(d->functionSetAttribute(twice, functionMaxDynamicShared, bytes), success);
    EXPECT_EQ(d->functionSetAttribute(twice, functionMaxDynamicShared, bytes + 1), invalidValue);
  }
  unsetenv("GPTC_STANDIN_ARCH");
}

}  // namespace
}  // namespace gptc::test
