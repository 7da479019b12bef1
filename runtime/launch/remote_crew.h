// A crew on another machine: ssh starts gptrun there as an agent, which starts the ranks and tells of them.
//
//   here                                     there
//   ssh HOST 'exec .../gptrun --agent'  ->   runAgent(): a crew of its own
//   one line of JSON each, on ssh's standard input: the plan, then signals and a line per second
//                                       <-   on its standard output: what became of the ranks, what rank 0 says
//
// The token is in the plan, so that no command line shows it. Either side that hears nothing for the time of `silence`
// takes the other one for lost; the agent then ends its ranks.
#pragma once

#include "runtime/launch/crew.h"

#include <chrono>

namespace gptc {

struct RemoteOptions {
  /// The agent's command, quoted for a shell by us.
  std::vector<std::string> agent;
  std::chrono::milliseconds silence{15000};
};

/// Starts ssh; that it does not get there is told by lost().
std::unique_ptr<Crew> startCrewAt(const std::string &host, const CrewPlan &plan, const Voice &voice,
                                  const RemoteOptions &options);

/// The other end: `gptrun --agent`. Returns an exit code.
int runAgent(int in, int out);

/// For a POSIX shell: 'it'\''s'.
std::string shellQuoted(llvm::StringRef word);

}  // namespace gptc
