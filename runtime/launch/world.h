// Who this process is among the ranks of a run, and where the others are found.
//
// gptrun's own launcher says it in GPTC_* variables; srun, torchrun and mpirun say it in theirs. The first of these
// that speaks is believed: GPTC_*, torchrun, Open MPI, Slurm. (Each may have been started from within the next.)
// docs/distributed.md lists the variables.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace gptc {

/// The environment, as a function for tests' sake.
using Environment = std::function<std::optional<std::string>(const char *name)>;
std::optional<std::string> processEnvironment(const char *name);

/// host:port, of IPv6 [host]:port.
struct NetAddress {
  std::string host;
  int port = 0;
  std::string str() const;
  static std::optional<NetAddress> parse(const std::string &text);
};

struct World {
  enum class Source { alone, launcher, torchrun, openMpi, slurm };

  /// Ranks count machine by machine: rank = node * ranksPerNode + localRank, size = nodes * ranksPerNode.
  int rank = 0, size = 1;
  int node = 0, nodes = 1;
  int localRank = 0, ranksPerNode = 1;
  /// Where ranks meet. Under gptrun's launcher it is the launcher that listens there, else rank 0 must.
  NetAddress rendezvous;
  /// What a rank must know to be let in; never empty where size > 1. Where nobody handed one over it is derived from
  /// the number of the job (`tokenIsSecret` false): that keeps jobs of two runs apart, and nobody out.
  std::string token;
  bool tokenIsSecret = false;
  Source source = Source::alone;
  /// Resume from no checkpoint beyond this step; -1: from the newest. Set by the launcher where a run got no further
  /// than its checkpoint.
  int64_t resumeAtMost = -1;
  /// How often the launcher has started this run again: a run that is to start over does so once.
  int restarts = 0;

  bool alone() const { return size == 1; }
  /// "srun", as users know it.
  const char *startedBy() const;

  /// Reads the environment. UserError(RanksUnclear) for what is missing, no number, or does not fit together.
  static World find(const Environment &env = processEnvironment);
};

}  // namespace gptc
