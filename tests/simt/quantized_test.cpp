// Products with weights of 8 and 4 bits on CUDA: the bits of CPUs for every format, at the edges of both kernels; and
// that barriers, halves of bytes, signs and orders count.
#include "cases.h"

#include "codegen/cuda/nvrtc.h"
#include "support/diagnostics.h"
#include "tests/support/whole_run.h"
#include "tests/unit/codegen/quantized_products.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gptc::test {
namespace {

constexpr QuantFormat q8_0 = QuantFormat::q8_0, q4_0 = QuantFormat::q4_0, q4_k = QuantFormat::q4_k;

Case quantizedCase(const QuantizedShape &s, DType stored, std::optional<Schedule> schedule = {},
                   const char *gpu = "cuda:sm_90a", DType result = DType::f32) {
  Group g = productOf(s, stored, result);
  std::vector<Tensor> operands = operandsOf(g, unsigned(s.m * 7 + s.n));
  return makeCase(std::move(g), std::move(operands), schedule, gpu);
}

Schedule scheduleFrom(const char *text) {
  Schedule s;
  EXPECT_TRUE(Schedule::parse(text, s)) << text;
  return s;
}

// What every row of every format gives on a CPU, also where a GPU has few multiprocessors and so wider blocks.
TEST(CudaQuantized, HasTheBitsOfCpus) {
  std::vector<Case> cases;
  for (const QuantizedShape &s : gpuShapes()) {
    cases.push_back(quantizedCase(s, s.m % 2 ? DType::f32 : DType::bf16));
    cases.push_back(quantizedCase(s, s.m % 2 ? DType::bf16 : DType::f32, {}, "cuda:sm_75"));
  }
  cases.push_back(quantizedCase({9, 67, 6, 32, q4_0}, DType::bf16, {}, "cuda:sm_90a", DType::bf16));
  cases.push_back(quantizedCase({2, 67, 6, 32, q8_0}, DType::f16, {}, "cuda:sm_90a", DType::f16));
  check(cases);
}

// Few threads and columns, so that K has several stages; narrow tiles.
TEST(CudaQuantized, SmallSchedules) {
  std::vector<Case> cases;
  for (const QuantFormat format : {q8_0, q4_0, q4_k}) {
    for (const auto &[m, blocks] : {std::pair(1, 72), {3, 40}, {4, 64}})
      cases.push_back(quantizedCase({m, 21, blocks, 16, format}, DType::f32, scheduleFrom("matmul threads=32 nc=8")));
    cases.push_back(quantizedCase({8, 21, 24, 16, format}, DType::f32, scheduleFrom("matmul threads=128 nc=16")));
    cases.push_back(quantizedCase({21, 45, 24, 16, format}, DType::bf16,
                                  scheduleFrom("matmul threads=32 mr=4 nr=4 mc=16 nc=32 kc=64")));
    cases.push_back(quantizedCase({12, 9, 8, 2, format}, DType::f32,
                                  scheduleFrom("matmul threads=32 mr=4 nr=2 mc=16 nc=16 kc=32")));
  }
  check(cases);
}

// Zeros, denormals, the ends of the range, and what is not finite, in rows of their own.
TEST(CudaQuantized, RoundsAnyBlock) {
  std::vector<Case> cases;
  for (const int64_t m : {6, 12}) {
    Group g = productOf({m, 19, 2, 16, q8_0}, DType::f32);
    std::vector<Tensor> operands = operandsOf(g, 5);
    for (int64_t i = 0; i < quantBlock; ++i) {
      auto put = [&](int64_t row, double v) { operands[0].data[size_t(row * 2 * quantBlock + i)] = double(float(v)); };
      put(0, 0);
      put(1, i % 2 ? -1e-42 : 1e-45);
      put(2, i == 7 ? -3.4e38 : 1e30 * double(i));
      put(3, i == 31 ? INFINITY : 1);
      put(4, i == 0 ? NAN : 1);
      put(5, std::ldexp(1.0, int(-i)));
    }
    const Case c = makeCase(std::move(g), std::move(operands));
    const CudaKernel text = emitCuda(c.gpu, "k");
    if (!simt::HostModule::possible())
      GTEST_SKIP() << "no C++ compiler: set CXX";
    const simt::HostModule module(text.text, {text.phases[0].symbol, text.phases[1].symbol});
    std::vector<std::vector<double>> got, want = c.content;
    ASSERT_EQ(runOnShim(c, module, text, false, false, got), "");
    while (want.size() < c.gpu.params.size())
      want.emplace_back(size_t(c.gpu.params[want.size()]->size), 0.0);
    kir::interpret(c.gpu, want, true);
    for (int64_t i = 0; i < m * 19; ++i) {
      ASSERT_TRUE(sameNumber(got[4][size_t(i)], want[4][size_t(i)])) << i;
      ASSERT_EQ(std::isnan(got[4][size_t(i)]), i / 19 == 3 || i / 19 == 4) << i;
    }
  }
}

TEST(CudaQuantized, FaultsAreNoticed) {
  if (!simt::HostModule::possible())
    GTEST_SKIP() << "no C++ compiler: set CXX";
  OneIn some(3);
  for (const bool few : {true, false}) {
    const Case c = few ? quantizedCase({3, 21, 40, 16, q4_k}, DType::f32, scheduleFrom("matmul threads=32 nc=8"))
                       : quantizedCase({21, 45, 16, 16, q4_k}, DType::f32,
                                       scheduleFrom("matmul threads=32 mr=4 nr=4 mc=16 nc=32 kc=128"));
    const CudaKernel whole = emitCuda(c.gpu, "k");
    auto moduleOf = [&](const CudaKernel &k) {
      return simt::HostModule(k.text, {k.phases[0].symbol, k.phases[1].symbol});
    };
    std::vector<std::vector<double>> right;
    ASSERT_EQ(runOnShim(c, moduleOf(whole), whole, false, false, right), "");
    ASSERT_FALSE(isNoticed(c, moduleOf(whole), whole, right));
    int barriers = 0;
    auto expectNoticed = [&](size_t at, size_t length, const std::string &by) {
      if (some.skips())
        return;
      CudaKernel broken = whole;
      broken.text.replace(at, length, by);
      EXPECT_TRUE(isNoticed(c, moduleOf(broken), broken, right))
          << whole.text.substr(at - std::min<size_t>(at, 100), 100 + length) << " -> " << by;
    };
    const std::string barrier = "barrier();";
    for (size_t at = whole.text.find(barrier); at != std::string::npos; at = whole.text.find(barrier, at + 1)) {
      ++barriers;
      expectNoticed(at, barrier.size(), ";");
    }
    EXPECT_EQ(barriers, 4) << "two in each launch\n" << whole.text;
    for (const auto &[from, to] : {std::pair("waitForPrevious();", ";"),
                                   {"& 252645135u)", "& 252645134u)"},  // the first bit of a number
                                   {">> 4u)", ">> 3u)"},                // the upper half of a byte
                                   {"dotOfBytes(0, 16843009u", "dotOfBytes(1, 16843009u"}}) {
      const size_t at = whole.text.rfind(from);
      ASSERT_NE(at, std::string::npos) << from << "\n" << whole.text;
      expectNoticed(at, std::string(from).size(), to);
    }
  }
}

TEST(CudaQuantized, CompilesForEveryGpuWithoutSpills) {
  std::string why;
  const Nvrtc *nvrtc = Nvrtc::find(why);
  if (!nvrtc)
    GTEST_SKIP() << why;
  OneIn some(5);
  for (const char *gpu :
       {"cuda:sm_75", "cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_90a", "cuda:sm_100", "cuda:sm_120"}) {
    const Target target = cudaTarget(gpu);
    std::string text;
    int n = 0;
    for (const QuantFormat format : {q8_0, q4_0, q4_k})
      for (const int64_t m : {1, 2, 7, 8, 33, 512}) {
        if (some.skips())
          continue;
        const Group g = productOf({m, m % 2 ? 4096 : 11008, 128, 32, format}, DType::bf16);
        const LoweredGroup low = lowerGroup(*g.fused, defaultSchedule(*g.fused, target), target);
        EXPECT_EQ(kir::verify(low.kernel), std::vector<std::string>());
        const CudaKernel k = emitCuda(low.kernel, fmt::format("k{}", n++));
        for (const CudaPhase &p : k.phases)
          EXPECT_LE(p.sharedBytes, target.sharedBytes);
        text += k.text;
      }
    const CompiledCuda out = nvrtc->compile(text, target);
    EXPECT_EQ(out.spilledBytes, 0) << gpu << "\n" << out.log;
  }
}

}  // namespace
}  // namespace gptc::test
