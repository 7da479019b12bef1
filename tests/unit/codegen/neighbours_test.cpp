// Other ranks while one is measured: they work when it does, on their own CPUs, and on nothing else.
#include "codegen/tuner/group_bench.h"
#include "codegen/tuner/neighbours.h"
#include "support/cpus.h"
#include "tests/support/recipe_harness.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace gptc::test {
namespace {

/// Two groups: on the first CPU and on the last, which may be the same.
std::vector<std::vector<int>> twoGroups() {
  const std::vector<int> cpus = usableCpus();
  return {{cpus.front()}, {cpus.back()}};
}

/// Waits until `happened`, for at most a minute.
bool comes(const std::function<bool()> &happened) {
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1); !happened();
       std::this_thread::yield())
    if (std::chrono::steady_clock::now() > end)
      return false;
  return true;
}

TEST(Neighbours, WorkWhileOneIsMeasured) {
  Neighbours neighbours(twoGroups(), 1);
  ASSERT_EQ(neighbours.size(), 2u);
  for (int round = 1; round <= 3; ++round) {
    std::atomic<int> calls[2] = {0, 0}, inside = 0;
    neighbours.beside(
        [&](size_t i, ThreadPool &) {
          ++inside;
          ++calls[i];
          std::this_thread::yield();
          --inside;
        },
        [&] {
          for (std::atomic<int> &c : calls)
            EXPECT_TRUE(comes([&, before = c.load()] { return c > before + 3; })) << "again and again";
        });
    EXPECT_EQ(inside, 0) << "none is left at work";
    const int ended = calls[0] + calls[1];
    neighbours.each([](size_t, ThreadPool &) {});
    EXPECT_EQ(calls[0] + calls[1], ended);
  }
}

TEST(Neighbours, RunOnTheirCpusWithTheirPools) {
  const std::vector<std::vector<int>> cpus = twoGroups();
  const std::vector<int> before = usableCpus();
  Neighbours neighbours(cpus, 2);
  std::vector<std::vector<int>> seen(2);
  std::vector<unsigned> threads(2);
  neighbours.each([&](size_t i, ThreadPool &pool) {
    seen[i] = usableCpus();
    threads[i] = pool.size();
  });
  EXPECT_EQ(seen, cpus);
  EXPECT_EQ(threads, std::vector<unsigned>({2, 2}));
  EXPECT_EQ(usableCpus(), before) << "this thread stays where it was";
}

TEST(Neighbours, AFailureComesOut) {
  Neighbours neighbours(twoGroups(), 1);
  auto fails = [](size_t i, ThreadPool &) {
    if (i == 1)
      throw std::runtime_error("no memory");
  };
  EXPECT_THROW(neighbours.each(fails), std::runtime_error);
  EXPECT_THROW(neighbours.beside(fails, [] {}), std::runtime_error);
  EXPECT_THROW(neighbours.beside([](size_t, ThreadPool &) {}, [] { throw std::logic_error("mine"); }),
               std::logic_error);
  int calls = 0;
  neighbours.beside([](size_t, ThreadPool &) {}, [&] { ++calls; });
  EXPECT_EQ(calls, 1) << "the next work finds them ready";
}

TEST(Neighbours, RunWhatATunerTimesAndNothingElse) {
  const Group g = group("matmul", "%a: f32[64,48]; %b: f32[48,64]", "%y = matmul %a, %b : f32[64,64]\nyield %y");
  const Target target = hostTarget(1, 3);
  ThreadPool pool(1);
  Neighbours neighbours(twoGroups(), 1);
  for (bool cold : {false, true}) {
    GroupBench bench(*g.fused, target, pool, cold, nullptr, &neighbours);
    const int64_t before = neighbours.calls();
    EXPECT_EQ(bench.check(bench.base(), 10), Trial::Outcome::timed);
    EXPECT_EQ(neighbours.calls(), before) << "a check times nothing";
    const Timing t = bench.time(bench.base(), 3, 10, 1e9);
    EXPECT_EQ(t.runs, 3);
    EXPECT_GT(t.least, 0);
    EXPECT_GE(neighbours.calls(), before + 3 * 2);
    EXPECT_EQ(bench.check(bench.base(), 10), Trial::Outcome::timed) << "they write to memory of their own";
  }
}

}  // namespace
}  // namespace gptc::test
