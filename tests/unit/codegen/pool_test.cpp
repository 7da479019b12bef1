#include "support/diagnostics.h"
#include "support/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <sched.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace gptc;

namespace {

struct Job {
  std::vector<int> runs;
  std::atomic<int64_t> ranges{0};
};
void countRuns(void *arg, int64_t begin, int64_t end) {
  auto *j = static_cast<Job *>(arg);
  ++j->ranges;
  for (int64_t i = begin; i < end; ++i)
    ++j->runs[i];  // unguarded on purpose: tsan sees it when two threads get one task
}

}  // namespace

TEST(ThreadPool, EachTaskRunsOnce) {
  for (unsigned threads : {1u, 2u, 3u, 8u, 64u}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int64_t tasks : {0, 1, 2, 7, 64, 1000}) {
      Job j;
      j.runs.assign(tasks, 0);
      pool.run(tasks, countRuns, &j);
      EXPECT_EQ(j.runs, std::vector<int>(tasks, 1)) << threads << " threads";
    }
  }
}

TEST(ThreadPool, ResultsAreVisibleToTheCallerAndTheNextJob) {
  ThreadPool pool(2);
  std::vector<int64_t> v(500, 0);
  for (int round = 0; round < 3000; ++round)
    pool.run(
        v.size(),
        [](void *arg, int64_t b, int64_t e) {
          auto &v = *static_cast<std::vector<int64_t> *>(arg);
          for (; b < e; ++b)
            v[b] += b;
        },
        &v);
  for (int64_t i = 0; i < 500; ++i)
    ASSERT_EQ(v[i], 3000 * i);
}

TEST(ThreadPool, WakesSleepers) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // workers have gone to sleep by now
    std::atomic<int> threads{0};
    // Two tasks that wait for each other finish only if two threads take part.
    pool.run(
        2,
        [](void *arg, int64_t, int64_t) {
          auto &n = *static_cast<std::atomic<int> *>(arg);
          ++n;
          while (n < 2)
            std::this_thread::yield();
        },
        &threads);
    EXPECT_EQ(threads, 2);
  }
}

TEST(ThreadPool, ATaskMayCallRun) {
  ThreadPool pool(2);
  struct Nested {
    ThreadPool *pool;
    std::atomic<int64_t> sum{0};
  } n{&pool};
  pool.run(
      10,
      [](void *arg, int64_t b, int64_t e) {
        auto *n = static_cast<Nested *>(arg);
        for (; b < e; ++b)
          n->pool->run(10, [](void *arg, int64_t b, int64_t e) { static_cast<Nested *>(arg)->sum += e - b; }, n);
      },
      &n);
  EXPECT_EQ(n.sum, 100);
}

TEST(ThreadPool, LeavesTheCallersAffinityAlone) {
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  {
    ThreadPool pool(2);
  }
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(ThreadPool, StartsAndStopsQuickly) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(3);
    if (i % 2) {
      Job j;
      j.runs.assign(5, 0);
      pool.run(5, countRuns, &j);
      EXPECT_EQ(std::accumulate(j.runs.begin(), j.runs.end(), 0), 5);
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need address space themselves
TEST(ThreadPool, ThreadsThatDoNotStart) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  auto attempt = [] {
    rlimit limit{size_t(1) << 30, size_t(1) << 30};  // room for some stacks, not for all
    setrlimit(RLIMIT_AS, &limit);
    try {
      ThreadPool pool(4096);
    } catch (const UserError &e) {
      _exit(e.exitCode());
    }
    _exit(0);
  };
  EXPECT_EXIT(attempt(), testing::ExitedWithCode(4), "");
}
#endif

TEST(ThreadPool, AnErrorOfATaskComesOutWhenAllHaveEnded) {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> ended = 0;
    EXPECT_THROW(pool.each(40,
                           [&](int64_t i) {
                             ++ended;
                             if (i == 7)
                               throw std::runtime_error("seven");
                           }),
                 std::runtime_error);
    EXPECT_EQ(ended, 40);
  }
  int64_t sum = 0;
  ThreadPool(1).each(10, [&](int64_t i) { sum += i; });
  EXPECT_EQ(sum, 45);
}
