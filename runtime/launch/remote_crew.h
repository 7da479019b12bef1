// A crew on another machine: ssh starts gptrun there as an agent, which starts the ranks and reports on them.
//
//   here                                     there
//   ssh HOST 'exec .../gptrun --agent'  ->   runAgent(): a local crew
//   lines of JSON on ssh's standard input: the plan, then signals and one line per second
//                                       <-   on its standard output: states of the ranks, rank 0's output
//
// The token is part of the plan, so it shows on no command line. A side that hears nothing for `silence` takes the
// other one for lost; the agent then ends its ranks.
#pragma once

#include "runtime/launch/crew.h"

#include <chrono>

namespace gptc {

struct RemoteOptions {
  /// The agent's command, which is quoted for a shell here.
  std::vector<std::string> agent;
  std::chrono::milliseconds silence{15000};  // after which the other side counts as lost
};

/// Starts ssh. lost() reports if it cannot connect.
std::unique_ptr<Crew> startCrewAt(const std::string &host, const CrewPlan &plan, const Voice &voice,
                                  const RemoteOptions &options);

/// The agent: `gptrun --agent`. Returns an exit code.
int runAgent(int in, int out);

/// Quotes a word for a POSIX shell: 'it'\''s'.
std::string shellQuoted(llvm::StringRef word);

}  // namespace gptc
