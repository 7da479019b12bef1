// Finds this process's rank in a run, and where the other ranks meet it.
//
// gptrun's launcher sets GPTC_* variables; srun, torchrun and mpirun set their own. The first of these that is set
// counts: GPTC_*, torchrun, Open MPI, Slurm, because each may run within the next. docs/distributed.md says where ranks
// meet then.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace gptc {

/// The environment, as a function so that tests can replace it.
using Environment = std::function<std::optional<std::string>(const char *name)>;
std::optional<std::string> processEnvironment(const char *name);

/// host:port; for IPv6 [host]:port.
struct NetAddress {
  std::string host;
  int port = 0;
  std::string str() const;
  static std::optional<NetAddress> parse(const std::string &text);
};

struct World {
  enum class Source { alone, launcher, torchrun, openMpi, slurm };

  /// Ranks are numbered by machine: rank = node * ranksPerNode + localRank, size = nodes * ranksPerNode.
  int rank = 0, size = 1;
  int node = 0, nodes = 1;
  int localRank = 0, ranksPerNode = 1;
  /// Where ranks meet. gptrun's launcher listens there; under another launcher rank 0 must.
  NetAddress rendezvous;
  /// The secret that admits a rank; never empty if size > 1. If none was given, it is derived from the job's number and
  /// `tokenIsSecret` is false: that keeps two jobs apart, but keeps nobody out.
  std::string token;
  bool tokenIsSecret = false;
  Source source = Source::alone;
  /// Resume from no checkpoint after this step; -1: from the newest. The launcher sets it if a restart did not get
  /// beyond its checkpoint.
  int64_t resumeAtMost = -1;
  /// How often the launcher has restarted this run, and Slurm its job; gptrun's own launcher does not count what came
  /// before the first step of all.
  /// With --resume never, only the first start begins anew.
  int restarts = 0;
  /// Descriptor of what our launcher passes to rank 0 in place of a file that only the launcher can read; -1: nothing.
  int input = -1;

  bool alone() const { return size == 1; }
  /// The launcher's name for users: "srun".
  const char *startedBy() const;

  /// Reads the environment. Throws UserError(RanksUnclear) for missing, malformed or inconsistent variables.
  static World find(const Environment &env = processEnvironment);
};

}  // namespace gptc
