// CPUs and memory nodes, of this machine and of ones that are made up.
#include "support/cpus.h"

#include "runtime/device/arena.h"
#include "runtime/launch/cores.h"
#include "support/thread_pool.h"
#include "temp_dir.h"

#include <algorithm>
#include <cerrno>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace gptc;

namespace {

using Numbers = std::vector<int>;

/// A file system that says of each node which CPUs it has.
struct MadeUpNodes {
  explicit MadeUpNodes(const std::vector<std::string> &cpusOfNode, const std::string &online) {
    for (size_t node = 0; node < cpusOfNode.size(); ++node) {
      const std::string folder = dir / fmt::format("devices/system/node/node{}", node);
      std::filesystem::create_directories(folder);
      writeFile(folder + "/cpulist", cpusOfNode[node] + "\n");
    }
    writeFile(dir / "devices/system/node/online", online + "\n");
  }
  TempDir dir;
};

/// Two nodes among which this machine's CPUs would alternate: even ones on node 1, odd ones on node 0.
MadeUpNodes alternatingNodes() {
  std::vector<std::string> lists(2);
  for (int cpu : usableCpus())
    lists[cpu % 2 ? 0 : 1] += fmt::format("{}{}", lists[cpu % 2 ? 0 : 1].empty() ? "" : ",", cpu);
  return MadeUpNodes(lists, "0-1");
}

/// How the pages at `memory` are placed; -1 if the system does not say.
int policyOf(void *memory) {
  int mode = -1;
  return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0, memory, MPOL_F_ADDR) == 0 ? mode : -1;
}

TEST(Cpus, NodesAreReadAsLinuxWritesThem) {
  const MadeUpNodes two({"0-3,8-11", "4-7,12-15"}, "0-1");
  EXPECT_EQ(nodesOf({0, 3, 4, 8, 12, 15}, two.dir.path), (Numbers{0, 0, 1, 0, 1, 1}));
  EXPECT_EQ(nodesOf({5, 6}, two.dir.path), (Numbers{1, 1}));
  const MadeUpNodes apart({"0-1", "", "2"}, "0,2");  // node 1 is not there
  EXPECT_EQ(nodesOf({0, 1, 2}, apart.dir.path), (Numbers{0, 0, 2}));
}

TEST(Cpus, WhatSaysNothingOfNodesIsOneNode) {
  const TempDir empty;
  EXPECT_EQ(nodesOf({0, 5}, empty.path), (Numbers{0, 0}));
  EXPECT_EQ(nodesOf({0, 5}, empty / "missing"), (Numbers{0, 0}));
  // A CPU that no node has: whoever made this file system hides some.
  EXPECT_EQ(nodesOf({0, 5}, MadeUpNodes({"", "0-3"}, "0-1").dir.path), (Numbers{0, 0}));
  for (const char *bad : {"x", "0-", "-1", "0,,1", "0-1x", "99999999999", "0;1"}) {
    EXPECT_EQ(nodesOf({0, 1}, MadeUpNodes({"", bad}, "0-1").dir.path), (Numbers{0, 0})) << bad;
    EXPECT_EQ(nodesOf({0, 1}, MadeUpNodes({"", "0-1"}, bad).dir.path), (Numbers{0, 0})) << bad;
  }
}

TEST(Cpus, ThoseOfANodeStayTogether) {
  const MadeUpNodes nodes = alternatingNodes();
  const Numbers cpus = orderedCpus(nodes.dir.path), of = nodesOf(cpus, nodes.dir.path);
  EXPECT_TRUE(std::is_sorted(of.begin(), of.end()));
  Numbers sorted = cpus;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, usableCpus());
}

TEST(Cpus, RanksThatLieAcrossNodesGetANote) {
  EXPECT_EQ(noteOfNodes(1, 4), "");
  EXPECT_EQ(noteOfNodes(0, 1), "") << "unknown";
  EXPECT_NE(noteOfNodes(2, 1).find("on 2 memory nodes"), std::string::npos);
  EXPECT_NE(noteOfNodes(2, 1).find("--ranks-per-node 2 "), std::string::npos);
  EXPECT_NE(noteOfNodes(4, 2).find("--ranks-per-node 8 "), std::string::npos);
}

TEST(Cpus, AnArenaIsSpreadOverTheNodesOfThePoolsThreads) {
  const Numbers cpus = usableCpus();
  if (std::none_of(cpus.begin(), cpus.end(), [](int cpu) { return cpu % 2; }) ||
      std::all_of(cpus.begin(), cpus.end(), [](int cpu) { return cpu % 2; }))
    GTEST_SKIP() << "needs an even and an odd CPU";
  const MadeUpNodes nodes = alternatingNodes();
  ThreadPool all(unsigned(cpus.size()), nodes.dir.path), more(unsigned(cpus.size()) + 1, nodes.dir.path),
      one(1, nodes.dir.path);
  EXPECT_EQ(all.nodes(), (Numbers{0, 1}));
  EXPECT_EQ(more.nodes(), (Numbers{0, 1}));
  EXPECT_EQ(one.nodes(), (Numbers{cpus[0] % 2 ? 0 : 1}));

  constexpr int64_t bytes = 5 << 20;
  Arena spread(bytes, &all), near(bytes, &one), alone(bytes);
  EXPECT_TRUE(std::all_of(spread.data(), spread.data() + bytes, [](std::byte b) { return b == std::byte(0); }));
  const int untouched = policyOf(alone.data());  // this process's own, which numactl may have set
  if (untouched < 0 || !spreadOverNodes(alone.data(), 4096, {0, 1}))
    GTEST_SKIP() << "the system does not let its memory be placed";
  for (int64_t at : {int64_t(0), bytes / 2, bytes - 1})
    EXPECT_EQ(policyOf(spread.at(at)), MPOL_INTERLEAVE) << at;
  EXPECT_EQ(policyOf(near.data()), untouched) << "threads of one node touch what they use";
}

TEST(Cpus, ARefusalIsSaidAndHarmless) {
  Arena a(8192);
  EXPECT_FALSE(spreadOverNodes(a.data(), 8192, {}));
  EXPECT_FALSE(spreadOverNodes(a.data() + 1, 4096, {0})) << "no start of a page";
  a.data()[8191] = std::byte(1);
  EXPECT_TRUE(a.intact());
}

}  // namespace
