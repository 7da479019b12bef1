// Starts the ranks of a run, watches them, and ends them: none outlives it.
//
//   1. Ranks start, here or over ssh, and meet at the launcher's rendezvous. Only rank 0 is heard.
//   2. A rank that ends badly, or is stuck (rank_watch.h), ends the attempt: the others are told through the
//   rendezvous,
//      get SIGTERM, and SIGKILL after a while.
//   3. What no second try can mend (a wrong setting, a full disk) is said once, with the words of the rank that failed
//      first. After anything else all ranks start again and resume from the newest good checkpoint; where a restart
//      does not get beyond the checkpoint it began with, the next begins with the one before.
//   4. Ctrl-C, SIGTERM and SIGHUP are passed on: ranks finish their step, save and end. A second one ends all at once.
#pragma once

#include "runtime/launch/rank_watch.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gptc {

struct LaunchOptions {
  /// Machines; without `hosts` there is one, this, and it runs all nodes * ranksPerNode ranks.
  int nodes = 1, ranksPerNode = 1;
  std::vector<std::string> hosts;
  /// What every rank runs, by its path; and on other machines what serves runAgent() on its standard input and output.
  std::vector<std::string> command, agent;
  std::string outDir;  // absolute
  /// How other machines reach this one; "": by its name.
  std::string address;
  int restarts = 3;
  int restartsBefore = 0;  // of this run, by whoever has started the launcher again
  /// Steps of the checkpoints that there are, newest first.
  std::function<std::vector<int64_t>()> checkpoints;

  RankWatch::Limits watch;
  std::chrono::milliseconds grace{10000};        // from SIGTERM to SIGKILL after a failure, of a rank that saves...
  std::chrono::milliseconds briefGrace{500};     // ... and of all others
  std::chrono::milliseconds settle{300};         // for a first cause to show, behind a failure that may follow from it
  std::chrono::milliseconds pause{1000};         // before a restart
  std::chrono::milliseconds hostSilence{15000};  // of a machine's agent
};

/// Runs to the end and returns an exit code: 0, that of the rank that failed, or 130 after an interrupt that left no
/// time to save. Errors of ranks are written to stderr as they came, those of the launcher are UserError(RankFailed).
/// To be called by the main thread.
int launch(const LaunchOptions &options);

}  // namespace gptc
