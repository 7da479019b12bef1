// Memory, threads and stack that a shell limits: errors with a code that says so, and never a fault or an abort.
#include "tests/support/harness.h"

#include "tools/commands/main_guard.h"

#include <system_error>
#include <thread>
#include <unistd.h>

using namespace e2e;

namespace {

struct LimitsTest : ::testing::Test {
  /// A program behind `ulimit` with these words; no cache, so that it compiles.
  Result limited(const std::string &limits, const std::string &command) {
    return Process({"/bin/bash", "-c", "ulimit -c 0; ulimit " + limits + "; exec " GPTC_BIN_DIR "/" + command},
                   {{"GPTC_CACHE", ""}}, w.path("limited"))
        .wait();
  }
  Workplace w;
};

TEST_F(LimitsTest, MemoryThatIsShort) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need address space themselves";
#endif
  const std::string plan = w.compile("plan", {"model.n_layer=1", "train.steps=1", "eval.every=0"});
  const auto memory = [](int kb) { return "-v " + std::to_string(kb); };
  int refused = 0;
  // Less and less, as long as the program itself starts.
  for (int kb = 200'000; limited(memory(kb), "gptrun --version").code == 0; kb = kb * 4 / 5) {
    const Result r =
        limited(memory(kb), "gptrun " + plan + " --threads 2 --out-dir " + w.path("out") + std::to_string(kb));
    refused += r.code != 0;
    EXPECT_TRUE(r.code == 0 || r.code == 4) << kb << ": " << r.code << ", signal " << r.signal << "\n" << r.output;
    EXPECT_EQ(r.code == 4, r.output.find("error[GPTC0403]") != std::string::npos) << kb << "\n" << r.output;
  }
  EXPECT_GT(refused, 0) << "the limits are none";
}

TEST_F(LimitsTest, DataThatIsShort) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need memory themselves";
#endif
  const Result r = limited("-d 10000", "gptc compile " + w.modelFile() + " -o " + w.path("plan"));
  EXPECT_EQ(r.code, 4) << r.output;
  EXPECT_NE(r.output.find("error[GPTC0403]"), std::string::npos) << r.output;
}

TEST_F(LimitsTest, AStackThatIsShort) {
  const std::string compile =
      "gptc compile " + w.modelFile() + " --set model.n_layer=1 --set train.steps=1 -o " + w.path("plan");
  const Result r = limited("-s 100", compile);
  EXPECT_EQ(r.code, 4) << r.output;
  EXPECT_NE(r.output.find("the stack is limited to 100 KiB"), std::string::npos) << r.output;
  const Result soft = limited("-S -s 100", compile);
  EXPECT_EQ(soft.code, 0) << "a limit that may be raised is" << soft.output;
}

TEST(LimitsDeathTest, WhatIsThrownInAThread) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  auto thrown = [](auto what) {
    _exit(gptc::guardedMain([&] {
      std::thread([&] { what(); }).join();
      return 0;
    }));
  };
  EXPECT_EXIT(thrown([] { throw std::bad_alloc(); }), testing::ExitedWithCode(4), "error.GPTC0403.: out of memory");
  EXPECT_EXIT(thrown([] { throw std::runtime_error("odd"); }), testing::ExitedWithCode(70), "a bug in gptc: odd");
}

TEST(LimitsDeathTest, ThreadsThatAreShort) {
  EXPECT_EXIT(_exit(gptc::guardedMain([]() -> int {
                throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
              })),
              testing::ExitedWithCode(4), "error.GPTC0403.: the system has no more threads");
}

}  // namespace
