#include "runtime/device/waves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

using namespace gptc;

namespace {

/// out[i] = a[i] + b[i] in 64 tasks, each of which lets others go first.
void addTasks(void *const *params, int64_t begin, int64_t end) {
  const auto *a = static_cast<const int64_t *>(params[0]), *b = static_cast<const int64_t *>(params[1]);
  auto *out = static_cast<int64_t *>(params[2]);
  for (int64_t i = begin; i < end; ++i) {
    std::this_thread::yield();
    out[i] = a[i] + b[i];
  }
}

struct WavesTest : testing::Test {
  static constexpr int64_t n = 64, bytes = n * 8;
  CompiledKernel add{{CompiledPhase{addTasks, n}}};
  std::array<std::array<int64_t, n>, 8> rows{};
  std::vector<std::vector<void *>> params;
  std::array<int64_t, 3> sizes{bytes, bytes, bytes};
  ThreadPool pool{3};

  WavesTest() {
    params.reserve(64);
    for (auto &row : rows)
      row.fill(1);
  }
  /// rows[out] = rows[a] + rows[b]
  void kernel(Waves &w, size_t a, size_t b, size_t out) {
    params.push_back({rows[a].data(), rows[b].data(), rows[out].data()});
    w.add({&add, params.back(), sizes, 2});
  }
};

TEST_F(WavesTest, IndependentKernelsAreOneWave) {
  Waves w(pool.size());
  kernel(w, 0, 1, 2);
  kernel(w, 0, 1, 3);  // a common operand is no conflict
  kernel(w, 4, 4, 4);  // in place
  EXPECT_EQ(w.size(), 1u);
}

TEST_F(WavesTest, EveryConflictEndsAWave) {
  struct Case {
    size_t a, b, out;
    const char *what;
  };
  for (const Case &c :
       {Case{2, 0, 3, "reads what was written"}, {3, 3, 2, "writes it again"}, {3, 3, 1, "writes what was read"}}) {
    Waves w(pool.size());
    kernel(w, 0, 1, 2);
    kernel(w, c.a, c.b, c.out);
    EXPECT_EQ(w.size(), 2u) << c.what;
    kernel(w, 5, 5, 6);
    EXPECT_EQ(w.size(), 2u) << "a new wave knows nothing of the last";
  }
}

TEST_F(WavesTest, RangesThatOnlyTouchEachOtherDoNotConflict) {
  for (int64_t first : {0, 1}) {
    Waves w(pool.size());
    params.push_back({rows[0].data(), rows[1].data(), rows[2].data()});
    w.add({&add, params.back(), sizes, 2});
    // What the first kernel wrote ends where this one writes, or one element after.
    params.push_back({rows[5].data(), rows[6].data(), rows[2].data() + n - first});
    w.add({&add, params.back(), sizes, 2});
    EXPECT_EQ(w.size(), first ? 2u : 1u);
  }
}

TEST_F(WavesTest, ResultsAreThoseOfOneAfterTheOther) {
  auto program = [&](auto &&step) {
    step(0, 0, 1);  // 2
    step(0, 0, 2);  // 2
    step(1, 2, 3);  // 4
    step(3, 3, 0);  // 8: writes what the first two read
    step(0, 3, 4);
    step(5, 6, 7);
    step(4, 7, 5);
    step(5, 5, 5);
  };
  auto want = rows;
  program([&](size_t a, size_t b, size_t out) {
    for (int64_t i = 0; i < n; ++i)
      want[out][i] = want[a][i] + want[b][i];
  });
  const auto before = rows;
  Waves w(pool.size());
  program([&](size_t a, size_t b, size_t out) { kernel(w, a, b, out); });
  for (int round = 0; round < 50; ++round) {
    rows = before;
    w.run(pool);
    ASSERT_EQ(rows, want) << "round " << round;
  }
}

TEST_F(WavesTest, LaterPhasesWaitForEarlierOnes) {
  // Phase 1 reads what phase 0 wrote, in another order; a kernel beside it has one phase only.
  static std::atomic<int> firstDone, tooEarly;
  firstDone = tooEarly = 0;
  CompiledKernel two{{CompiledPhase{[](void *const *, int64_t begin, int64_t end) {
                                      for (int64_t i = begin; i < end; ++i) {
                                        std::this_thread::yield();
                                        ++firstDone;
                                      }
                                    },
                                    n},
                      CompiledPhase{[](void *const *, int64_t, int64_t) { tooEarly += firstDone != n; }, n}}};
  Waves w(pool.size());
  params.push_back({});
  w.add({&two, params.back(), {}, 0});
  kernel(w, 0, 1, 2);
  EXPECT_EQ(w.size(), 1u);
  w.run(pool);
  EXPECT_EQ(firstDone, n);
  EXPECT_EQ(tooEarly, 0);
  EXPECT_EQ(rows[2][n - 1], 2);
}

}  // namespace
