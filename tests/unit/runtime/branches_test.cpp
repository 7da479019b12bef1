#include "runtime/cuda/branches.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace gptc::cuda {
namespace {

struct Kernel {
  std::vector<Place> memory;
  unsigned reads;
  bool meets = false;
};

std::vector<Branch> branch(const std::vector<Kernel> &kernels, int streams) {
  std::vector<Touches> t;
  for (const Kernel &k : kernels)
    t.push_back({k.memory, k.reads, k.meets});
  return branchesOf(t, streams);
}

bool conflict(const Kernel &a, const Kernel &b) {
  for (size_t i = 0; i < a.memory.size(); ++i)
    for (size_t j = 0; j < b.memory.size(); ++j)
      if ((i >= a.reads || j >= b.reads) && a.memory[i].at < b.memory[j].at + b.memory[j].bytes &&
          b.memory[j].at < a.memory[i].at + a.memory[i].bytes)
        return true;
  return false;
}

TEST(Branches, IndependentKernelsSpreadOverTheStreams) {
  std::vector<Kernel> kernels;
  for (int i = 0; i < 8; ++i)
    kernels.push_back({{{i * 64, 64}}, 0});
  std::set<int> streams;
  for (const Branch &b : branch(kernels, 4)) {
    streams.insert(b.stream);
    EXPECT_TRUE(b.waits.empty());
  }
  EXPECT_EQ(streams.size(), 4u);
}

// A chain with a sum over ranks of each result: the chain goes on beside the sums, which have a stream of their own.
TEST(Branches, WhatMeetsOtherRanksStandsInNobodysWay) {
  std::vector<Kernel> kernels;
  for (int i = 0; i < 4; ++i) {
    kernels.push_back({{{i * 64, 64}, {i * 64 + 64, 64}}, 1});
    kernels.push_back({{{i * 64 + 64, 64}, {1024 + i * 64, 64}}, 1, true});
  }
  kernels.push_back({{{1024, 4 * 64}, {2048, 64}}, 1});  // reads all sums
  const std::vector<Branch> b = branch(kernels, 3);
  for (int i = 0; i < 8; i += 2) {
    EXPECT_EQ(b[i].stream, 0);
    EXPECT_TRUE(b[i].waits.empty());
    EXPECT_EQ(b[i + 1].stream, 3);
    EXPECT_EQ(b[i + 1].waits, std::vector<int>{i});
  }
  EXPECT_LT(b[8].stream, 3);
  EXPECT_EQ(b[8].waits, std::vector<int>{7});  // behind the other sums
}

TEST(Branches, AChainStaysOnOneStream) {
  std::vector<Kernel> kernels;
  for (int i = 0; i < 8; ++i)
    kernels.push_back({{{i * 64, 64}, {i * 64 + 64, 64}}, 1});
  for (const Branch &b : branch(kernels, 4)) {
    EXPECT_EQ(b.stream, 0);
    EXPECT_TRUE(b.waits.empty());
    EXPECT_FALSE(b.awaited);
  }
}

TEST(Branches, ReadersRunSideBySideAndAWriterWaitsForAll) {
  // 0 stores, 1 to 3 read, 4 stores again.
  const std::vector<Branch> b = branch(
      {{{{0, 64}}, 0}, {{{0, 64}, {64, 8}}, 1}, {{{0, 64}, {128, 8}}, 1}, {{{0, 64}, {192, 8}}, 1}, {{{32, 8}}, 0}}, 3);
  EXPECT_EQ(b[1].stream, b[0].stream);
  EXPECT_NE(b[2].stream, b[1].stream);
  EXPECT_EQ(b[2].waits, std::vector<int>{0});
  EXPECT_EQ(b[4].waits.size(), 2u);
}

// In random lists every two kernels that must not meet are ordered, by streams and waits alone; and not all others are.
TEST(Branches, OrdersEveryConflict) {
  std::mt19937 random(1);
  auto below = [&](int n) { return int(random() % n); };
  int ordered = 0, free = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<Kernel> kernels;
    for (int n = below(30) + 2; n > 0; --n) {
      Kernel k{{}, unsigned(below(3)), below(4) == 0};
      for (unsigned i = 0; i < k.reads + 1 + below(2); ++i)
        k.memory.push_back({below(400), below(40) + 1});
      kernels.push_back(k);
    }
    const int streams = 1 + below(4);
    const std::vector<Branch> b = branch(kernels, streams);
    // before[n]: all that has ended when n begins.
    std::vector<std::set<int>> before(kernels.size());
    std::vector<int> tail(streams + 1, -1);
    for (int n = 0; n < int(kernels.size()); ++n) {
      EXPECT_EQ(b[n].stream == streams, kernels[n].meets);
      auto after = [&](int p) {
        before[n].insert(p);
        before[n].insert(before[p].begin(), before[p].end());
      };
      if (tail[b[n].stream] >= 0)
        after(tail[b[n].stream]);
      for (int p : b[n].waits) {
        ASSERT_LT(p, n);
        EXPECT_TRUE(b[p].awaited);
        EXPECT_NE(b[p].stream, b[n].stream);
        after(p);
      }
      tail[b[n].stream] = n;
      for (int p = 0; p < n; ++p) {
        const bool is = before[n].count(p) != 0;
        EXPECT_TRUE(is || !conflict(kernels[p], kernels[n])) << p << " before " << n;
        ++(is ? ordered : free);
      }
    }
  }
  EXPECT_GT(ordered, 1000);
  EXPECT_GT(free, 1000);
}

}  // namespace
}  // namespace gptc::cuda
