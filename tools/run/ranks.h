// The ranks of a command of gptrun: how many there are, how they start, and how they stand together.
#pragma once

#include "runtime/collectives/communicator.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/mutual_watch.h"
#include "runtime/launch/world.h"
#include "runtime/plan/plan.h"
#include "runtime/rendezvous/rendezvous.h"
#include "runtime/train/session.h"
#include "tools/run/run_options.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gptc {

/// Number and placement of the ranks, from the command line or from the launcher of this one.
struct Ranks {
  World world;
  int nodes = 1, perNode = 1;
  std::vector<std::string> hosts;
  int size() const { return nodes * perNode; }
};

/// `usual`: ranks on this machine if the command line says nothing of ranks; `each`: those of each of so many machines
/// if it says how many machines there are, but not how many ranks each has. Throws UserErrors Usage, and RanksUnclear
/// if another launcher has started others.
Ranks chooseRanks(const RunOptions &o, const World &world, int usual, const std::function<int(int nodes)> &each);

/// What launch() is told to start this program once per rank with `words`, its own arguments.
LaunchOptions launchOptions(const Ranks &ranks, const std::vector<std::string> &words);

/// A rank among the others: their meeting and their communicators.
class Together {
public:
  /// Meets the other ranks before reading anything that may be missing on one machine, so that they hear of it too.
  explicit Together(const World &w);
  /// If the plan's folder needs a judgement (problemOfFolder), rank 0's counts, because caches of other machines may
  /// not know the plan. Under our launcher, the launcher's counts for all ranks.
  void agreeOnFolder(const RunOptions &o, const Plan &plan);
  /// Call it when this rank has the plan, and before it starts threads that compute.
  void join(const Plan &plan);
  /// The ranks along each axis of a two-axis mesh.
  MeshAxes along(const Mesh &mesh);
  /// Runs `work`, and tells the other ranks if it fails. Returns an exit code.
  int run(const std::function<void()> &work);
  void barrier();

  /// A hanging rank is noticed long before; but a rank may need time to write a large checkpoint.
  static constexpr std::chrono::minutes patience{30};

private:
  /// Under another launcher: if that lets several ranks of this machine use the same CPUs, each takes its share of
  /// them.
  void shareCpusOfMachine();
  int failed();
  void waitFor(std::chrono::seconds most, const std::function<bool()> &condition) const;

  const World world;
  std::optional<RendezvousServer> server;
  std::optional<MutualWatch> watch;
  std::optional<RendezvousClient> client;
  std::shared_ptr<void> told;

public:
  std::unique_ptr<Communicator> ranks;  // null if there is only one rank
  bool diverted = false;                // this rank's output goes to its log

private:
  std::vector<std::unique_ptr<Communicator>> axes;
};

}  // namespace gptc
