// Starts the ranks of a run, supervises them, and leaves no process behind.
//
//   1. Start the ranks, here or over ssh. They meet at the launcher's rendezvous. Only rank 0's output is shown.
//   2. A rank that fails or is stuck (rank_watch.h) ends the attempt: the other ranks are told through the rendezvous,
//      get SIGTERM, and later SIGKILL.
//   3. If a retry would fail again (a wrong setting, a full disk), report the error of the rank that failed first.
//      Otherwise restart all ranks from the newest good checkpoint; if a restart made no progress beyond its
//      checkpoint, the next one uses the previous checkpoint.
//   4. Pass on Ctrl-C, SIGTERM and SIGHUP: ranks finish their step, save and end. A second signal ends all at once.
//      Neither waits for long if the reader of the output pauses.
//
// Ranks that continue texts have no steps, checkpoints or restarts.
#pragma once

#include "runtime/launch/rank_watch.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gptc {

struct LaunchOptions {
  /// Machines. Without `hosts` this machine runs all nodes * ranksPerNode ranks.
  int nodes = 1, ranksPerNode = 1;
  std::vector<std::string> hosts;
  /// The command of every rank, beginning with the program's path; and the command that serves runAgent() on another
  /// machine's standard input and output.
  std::vector<std::string> command, agent;
  std::string outDir;  // absolute; "": the ranks have no logs, and others than rank 0 are heard only if they fail
  /// This machine's address for other machines; "": its name.
  std::string address;
  /// What rank 0 reads as its standard input, if it is on this machine; -1: nothing.
  int input = -1;
  /// Whether standard output is rank 0's alone: what the launcher starts it then says on standard error. If nobody
  /// reads it, SIGPIPE ends the ranks and then this process, as it does where no ranks are.
  bool outputIsOfRanks = false;
  int restarts = 3;        // allowed in this run
  int restartsBefore = 0;  // of this run, by whoever restarted the launcher
  /// Steps of the existing checkpoints, newest first.
  std::function<std::vector<int64_t>()> checkpoints;

  RankWatch::Limits watch;
  std::chrono::milliseconds grace{10000};     // from SIGTERM to SIGKILL after a failure, for a rank that saves
  std::chrono::milliseconds briefGrace{500};  // the same for all other ranks
  std::chrono::milliseconds settle{300};     // for the first cause to appear, after a failure that may be a consequence
  std::chrono::milliseconds pause{1000};     // before a restart
  std::chrono::milliseconds patience{5000};  // after a stop, with a reader that pauses
  std::chrono::milliseconds hostSilence{15000};  // of a machine's agent, until it counts as lost
};

/// Runs to the end and returns an exit code: 0, the code of the rank that failed, or 130 after an interrupt that left
/// no time to save. Errors of ranks go to stderr unchanged; the launcher's own are UserError(RankFailed). Only the main
/// thread may call it.
int launch(const LaunchOptions &options);

}  // namespace gptc
