// Ranks as processes: the test program starts itself again, once for each.
#pragma once

#include <string>
#include <vector>

namespace gptc::test {

/// How one ended: the exit status or minus the signal, and what it printed. One that still ran at the end was killed.
struct RankOutcome {
  int status = 0;
  std::string text;
  bool hung = false;
};

struct RankRun {
  std::string scenario;  // a key of rankScenarios()
  int world;
  std::vector<int> ranks = {};  // those that are started; empty: all
  int expected = -1;            // how many are waited for; the rest is killed then. -1: all
  std::vector<std::string> environment = {};
};
/// Waits for them at most 60 seconds.
std::vector<RankOutcome> runRanks(const RankRun &run);

/// In a rank: who it is, and a folder of all ranks of this run.
struct RankPlace {
  int rank, world;
  std::string folder;
};
using RankScenario = void (*)(const RankPlace &);
/// Registers what ranks can do, while the program starts. An exception becomes exit status 1 and its text.
struct RankScenarioAdded {
  RankScenarioAdded(const char *name, RankScenario run);
};

}  // namespace gptc::test
