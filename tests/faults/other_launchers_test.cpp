// Ranks that srun, torchrun or mpirun have started watch each other: whatever hangs is seen, and ends all but the rank
// that hangs, which is their launcher's to end.
#include "supervised.h"
#include "tests/support/port.h"

#include <csignal>
#include <thread>
#include <unistd.h>

using namespace faults;

namespace {

struct OtherLaunchers : testing::Test {
  Place w;
  const gptc::test::Port held;
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "the preloaded shim and the address sanitizer exclude each other";
#endif
  }
  /// As torchrun starts them.
  std::map<std::string, std::string> env(const char *rank, const char *interface) {
    const std::string port = std::to_string(held.number());
    return {{"RANK", rank},
            {"WORLD_SIZE", "2"},
            {"LOCAL_RANK", rank},
            {"LOCAL_WORLD_SIZE", "2"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", port},
            {"GPTC_RENDEZVOUS", "127.0.0.1:" + port},
            {"GPTC_INTERFACE", interface},
            {"LD_PRELOAD", std::string(GPTC_BIN_DIR) + "/../lib/libfault_shim.so"}};
  }
};

TEST_F(OtherLaunchers, WhoHangsIsNamed) {
  const std::string plan =
      w.compile("plan", {"parallel.data=2", "train.micro_batch=1", "train.steps=1000000", "checkpoint.every=0"});
  struct Case {
    const char *out, *interface;
    int signal;
  };
  gptc::test::OneIn some(2);
  for (const Case &c : {Case{"spins", "", SIGRTMIN + 1}, Case{"cut", "lo", SIGRTMIN + 4}}) {
    if (some.skips())
      continue;
    const std::vector<std::string> args = {plan, "--out-dir", w.path(c.out)};
    e2e::Process first = w.start("gptrun", args, env("0", c.interface));
    e2e::Process other = w.start("gptrun", args, env("1", c.interface));
    while (!first.hasEnded() && e2e::logLines(w.path(c.out)).size() < 5)
      std::this_thread::sleep_for(milliseconds(10));
    std::this_thread::sleep_for(milliseconds(2000));  // until rank 0 knows how long a step takes
    ASSERT_EQ(::kill(other.pid(), c.signal), 0);
    const Stalls stalls;
    const auto at = Clock::now();
    const e2e::Result r = first.wait();
    EXPECT_LT(secondsSince(at), 20 + stalls.seconds()) << c.out;
    EXPECT_EQ(r.code, 6) << r.output;
    // Where it spins within a collective, both are in one.
    EXPECT_TRUE(r.output.find(" runs but gets nowhere for 1") != std::string::npos ||
                r.output.find("no rank has got anything for 1") != std::string::npos)
        << c.out << r.output;
  }
}

}  // namespace
