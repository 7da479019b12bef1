#include "tools/run/ranks.h"

#include "ir/mesh.h"
#include "runtime/launch/cores.h"
#include "runtime/launch/host_list.h"
#include "runtime/launch/pulse.h"
#include "runtime/launch/same_run.h"
#include "support/cpus.h"
#include "support/diagnostics.h"
#include "tools/commands/main_guard.h"
#include "tools/run/plans.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>
#include <unistd.h>

namespace gptc {

Ranks chooseRanks(const RunOptions &o, const World &world, int usual, const std::function<int(int nodes)> &each) {
  Ranks r;
  r.world = world;
  if (o.hosts) {
    auto hosts = parseHostList(*o.hosts);
    if (!hosts)
      throw UserError(ErrorCode::Usage,
                      fmt::format("--hosts {} is no list of machines", o.hosts->empty() ? "\"\"" : *o.hosts),
                      "for example --hosts node1,node2 or --hosts node[1-8]");
    r.hosts = std::move(*hosts);
    std::set<llvm::StringRef> seen;
    for (const std::string &host : r.hosts)
      if (!seen.insert(host).second)
        throw UserError(ErrorCode::Usage, fmt::format("--hosts {} names {} twice", *o.hosts, host),
                        "name each machine once; --ranks-per-node says how many ranks it has");
    if (o.nodes && o.nodes != int(r.hosts.size()))
      throw UserError(ErrorCode::Usage, fmt::format("--nodes {}, but --hosts names {}", o.nodes, r.hosts.size()),
                      "leave out --nodes");
  }
  if (!r.world.alone()) {
    // Another launcher, such as srun, has started the ranks; this is one of them.
    r.nodes = r.world.nodes;
    r.perNode = r.world.ranksPerNode;
    if (r.world.source != World::Source::launcher &&
        (!r.hosts.empty() || (o.nodes && o.nodes != r.nodes) || (o.ranksPerNode && o.ranksPerNode != r.perNode)))
      throw UserError(ErrorCode::RanksUnclear,
                      fmt::format("{} has started {} nodes x {} ranks, and the command line asks for others",
                                  r.world.startedBy(), r.nodes, r.perNode),
                      "leave out --nodes, --ranks-per-node and --hosts");
    return r;
  }
  r.nodes = r.hosts.empty() ? std::max(1, o.nodes) : int(r.hosts.size());
  const bool silent = r.hosts.empty() && !o.nodes && !o.ranksPerNode;
  r.perNode = o.ranksPerNode ? o.ranksPerNode : silent ? usual : each(r.nodes);
  const int cpus = int(usableCpuCount()), most = std::max(64, 16 * cpus);
  if (r.hosts.empty() && r.size() > most)
    throw UserError(ErrorCode::Usage,
                    fmt::format("{} ranks on this machine, which has {} CPU{}: at most {} are started", r.size(), cpus,
                                cpus == 1 ? "" : "s", most),
                    "--hosts names other machines for them");
  return r;
}

LaunchOptions launchOptions(const Ranks &ranks, const std::vector<std::string> &words) {
  // By name, because in a bundle all programs are one file that acts by its name.
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gptrun";
  LaunchOptions l;
  l.nodes = ranks.nodes;
  l.ranksPerNode = ranks.perNode;
  l.hosts = ranks.hosts;
  l.restartsBefore = ranks.world.restarts;
  l.command = {self};
  l.command.insert(l.command.end(), words.begin(), words.end());
  l.agent = {self, "--agent"};
  return l;
}

namespace {

/// The exit of a rank that another launcher ends: if a rank has failed, with that rank's exit code, so that all ranks
/// have it. In effect from before the ranks meet, except while SIGTERM means to save.
class LastWords {
public:
  static void say(int rank, const RankFailure &f) {
    words = rank == 0 ? UserError(f.cause, f.text, f.help).what() : "";
    code = exitCodeOf(f.cause);
  }
  static void listen() {
    struct sigaction a{};
    a.sa_handler = [](int number) {
      if (const int said = code) {
        (void)!::write(STDERR_FILENO, words.data(), words.size());
        ::_exit(said);
      }
      ::signal(number, SIG_DFL);
      ::raise(number);
    };
    ::sigaction(SIGTERM, &a, nullptr);
  }

private:
  static inline std::string words;  // written once, before `code`
  static inline std::atomic<int> code{0};
};

}  // namespace

Together::Together(const World &w) : world(w) {
  const bool ours = w.source == World::Source::launcher;
  if (!w.alone() && !ours)
    watch.emplace();
  Pulse::get();  // from here on the watcher of this rank sees whether it runs
  if (w.alone())
    return;
  // Other launchers do not host a rendezvous, so rank 0 does. On a single machine, it is not reachable from others.
  if (w.rank == 0 && !ours)
    server.emplace(RendezvousServer::Options{w.nodes == 1 ? w.rendezvous.host : "0.0.0.0", uint16_t(w.rendezvous.port),
                                             w.token, w.size});
  RendezvousClient::Options o{w.rendezvous.host, uint16_t(w.rendezvous.port), w.token, w.rank, w.size};
  if (!ours) {  // rank 0 hosts the server, and no launcher watches
    o.silence = RendezvousServer::Options().silence;
    o.news = [this] { return watch->news(); };
  }
  if (!ours)
    LastWords::listen();
  client.emplace(o);
  if (!ours)
    told = client->onFailure([this] { LastWords::say(world.rank, *client->failure()); });
  if (server)
    watch->judge(*server, w.size);
}

void Together::agreeOnFolder(const RunOptions &o, const Plan &plan) {
  if (world.source == World::Source::launcher)
    return;
  if (world.rank == 0) {
    requireFolder(o, plan);
    client->set("folder", "agreed");
  } else if (!problemOfFolder(o, plan).empty()) {
    client->get("folder", std::chrono::minutes(2));
  }
}

void Together::join(const Plan &plan) {
  if (world.alone())
    return;
  requireSameRun(*client, plan.dir, plan.hash);
  shareCpusOfMachine();
  ranks = joinGroup(&*client, Group::all(world.size), {.patience = patience});
}

void Together::shareCpusOfMachine() {
  if (world.source == World::Source::launcher || world.ranksPerNode == 1)
    return;
  auto key = [](int rank) { return fmt::format("cpus/{}", rank); };
  const std::vector<int> cpus = orderedCpus();
  const std::string mine = fmt::format("{}", fmt::join(cpus, ","));
  client->set(key(world.rank), mine);
  int sharing = 0, place = 0;
  const int first = world.node * world.ranksPerNode;
  for (int rank = first; rank < first + world.ranksPerNode; ++rank) {
    if (client->get(key(rank), std::chrono::minutes(2)) != mine)
      continue;
    place += rank < world.rank;
    ++sharing;
  }
  if (sharing > 1)
    bindTo(shareCpus(cpus, sharing)[size_t(place)]);
}

MeshAxes Together::along(const Mesh &mesh) {
  if (mesh.data == 1 || mesh.tensor == 1)
    return {};
  auto joined = [&](const char *axis, int64_t number) {
    Group g{fmt::format("{}{}", axis, number), {}};
    for (int64_t member : mesh.group(axis, ranks->rank))
      g.members.push_back(int(member));
    axes.push_back(joinGroup(&*client, g, {.patience = patience}));
    return axes.back().get();
  };
  // The group along one axis is identified by its index on the other.
  MeshAxes m;
  m.data = joined("data", mesh.index("tensor", ranks->rank));
  m.tensor = joined("tensor", mesh.index("data", ranks->rank));
  return m;
}

int Together::run(const std::function<void()> &work) {
  try {
    work();
  } catch (...) {
    if (client)
      return failed();
    throw;
  }
  if (watch)
    watch->stop();
  if (ranks) {
    for (auto &axis : axes)
      axis->finish();
    ranks->finish();
    client->leave();
    // Others may still wait for the last message; to them a vanished server is a failed rank.
    waitFor(std::chrono::seconds(10), [&] { return server->left() == world.size || server->failure(); });
  }
  return 0;
}

void Together::barrier() {
  if (ranks)
    ranks->barrier();
}

/// Within a catch block: tells the other ranks why this one ends. The first failed rank prints the error. Under another
/// launcher all ranks exit with its code, because whether that launcher retries should not depend on which code it
/// looks at. (Ours finds the first failure by the codes.)
int Together::failed() {
  ::signal(SIGTERM, SIG_IGN);  // this rank is about to report and end
  const Diagnostic mine = currentError();
  client->report(mine.code, mine.message, fmt::format("{}", fmt::join(mine.help, "; ")));
  const RankFailure *first = client->failure(std::chrono::seconds(1));
  waitFor(std::chrono::seconds(5), [&] { return server->allKnowFailure(); });
  if (world.source == World::Source::launcher || !first || first->rank == world.rank)
    throw;
  if (!diverted && world.rank != 0)
    return exitCodeOf(first->cause);  // that rank and rank 0 report it
  throw UserError(first->cause, first->text,
                  !first->help.empty() ? first->help : "see what that rank says: the first that failed is the cause");
}

void Together::waitFor(std::chrono::seconds most, const std::function<bool()> &condition) const {
  const auto until = std::chrono::steady_clock::now() + most;
  while (server && !condition() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace gptc
