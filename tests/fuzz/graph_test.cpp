// Random modules through everything that tools/check knows: each pass alone, shuffled orders of passes, the text at
// every phase, and the machine code in its arena and on guarded memory. GPTC_FUZZ_ROUNDS asks for more modules,
// GPTC_FUZZ_SEED for a single one, whose text it prints.
#include "random_graph.h"

#include "support/diagnostics.h"
#include "tests/support/content.h"
#include "tests/support/whole_run.h"
#include "tools/check/module_check.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

namespace gptc::test {
namespace {

constexpr unsigned blocks = 8;

struct Failure {
  unsigned seed;
  std::string what, text;
};

unsigned fromEnvironment(const char *name, unsigned otherwise) {
  const char *value = std::getenv(name);
  return value ? unsigned(std::strtoul(value, nullptr, 10)) : otherwise;
}

std::string check(const Module &m, unsigned seed, BoundStats &stats) {
  CheckOptions options;
  options.cacheDir = sharedFolder("fuzz");  // modules of one palette share kernels
  options.seed = seed;
  options.threads = seed % 16 == 5 ? 3 : 1;
  try {
    return checkModule(m, options, stats);
  } catch (const UserError &e) {
    return e.what();
  }
}

class RandomModules : public testing::TestWithParam<unsigned> {};

TEST_P(RandomModules, HoldAtEveryPhase) {
  const bool single = std::getenv("GPTC_FUZZ_SEED");
  const unsigned rounds = fromEnvironment("GPTC_FUZZ_ROUNDS", sized(256, 20000));
  ASSERT_GT(rounds, 0u);
  const unsigned each = single ? GetParam() == 0 : (rounds + blocks - 1) / blocks;
  const unsigned first = single ? fromEnvironment("GPTC_FUZZ_SEED", 0) : GetParam() * each;
  std::atomic<unsigned> next = first;
  std::mutex mutex;
  std::vector<Failure> failures;
  BoundStats all;
  unsigned modules = 0, judged = 0;  // as a whole: most of what they yield has a bound
  auto work = [&] {
    for (unsigned seed; (seed = next++) < first + each;) {
      BoundStats stats;
      auto m = randomModule(seed);
      const std::string text = print(*m);
      if (single)
        std::fputs(text.c_str(), stdout);
      std::string what = check(*m, seed, stats);
      std::lock_guard lock(mutex);
      all += stats;
      ++modules;
      judged += stats.wholeBounded > stats.wholeUnbounded;
      if (!what.empty())
        failures.push_back({seed, what, text});
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i)
    threads.emplace_back(work);
  work();
  for (std::thread &t : threads)
    t.join();
  for (const Failure &f : failures)
    ADD_FAILURE() << "seed " << f.seed << ": " << f.what << "\n" << f.text;
  RecordProperty("kernels", int(all.kernels));
  if (each < 50)
    return;  // too few to judge the test by
  // What has no finite bound is not judged.
  EXPECT_GT(all.bounded, 99 * all.unbounded) << all.unbounded << " elements of kernels without a bound";
  EXPECT_GT(2 * judged, modules);
}

INSTANTIATE_TEST_SUITE_P(Blocks, RandomModules, testing::Range(0u, blocks));

/// What failed once, reduced. The first line names the seed of its inputs.
TEST(Regressions, Hold) {
  int files = 0;
  for (const auto &entry : std::filesystem::directory_iterator(GPTC_SOURCE_DIR "/tests/fuzz/regressions")) {
    const std::string text = test::contentOf(entry.path());
    unsigned seed = 0;
    ASSERT_EQ(std::sscanf(text.c_str(), "// seed=%u", &seed), 1) << entry.path();
    BoundStats stats;
    EXPECT_EQ(check(*parseModule(text, entry.path().string()), seed, stats), "") << entry.path();
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST(RandomModule, EveryPassHasAPlace) { EXPECT_EQ(passesWithoutPlace(), std::vector<std::string>()); }

}  // namespace
}  // namespace gptc::test
