// Runs ranks as processes: the test program starts itself once per rank.
#pragma once

#include <string>
#include <vector>

namespace gptc::test {

/// How a rank ended: the exit status or minus the signal, and its output. `hung`: it was still running at the end and
/// was killed.
struct RankOutcome {
  int status = 0;
  std::string text;
  bool hung = false;
};

struct RankRun {
  std::string scenario;         // a key in rankScenarios()
  int world;                    // number of ranks
  std::vector<int> ranks = {};  // ranks to start; empty: all
  int expected = -1;            // number of ranks to wait for, before the rest is killed; -1: all
  std::vector<std::string> environment = {};
};
/// Runs the ranks; waits for at most 60 seconds.
std::vector<RankOutcome> runRanks(const RankRun &run);

/// In a rank: its number, and a folder shared by all ranks of this run.
struct RankPlace {
  int rank, world;
  std::string folder;
};
using RankScenario = void (*)(const RankPlace &);
/// Registers a scenario during static initialisation. An exception becomes exit status 1 with its text.
struct RankScenarioAdded {
  RankScenarioAdded(const char *name, RankScenario run);
};

}  // namespace gptc::test
