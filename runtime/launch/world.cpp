#include "runtime/launch/world.h"

#include "runtime/launch/host_list.h"
#include "runtime/rendezvous/rendezvous.h"
#include "support/diagnostics.h"
#include "support/environment.h"
#include "support/files.h"

#include "llvm/ADT/StringExtras.h"

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gptc {
namespace {

constexpr long kMostRanks = 1 << 20;

[[noreturn]] void unclear(const std::string &message, const std::string &help) {
  throw UserError(ErrorCode::RanksUnclear, message, help);
}

/// Reads one launcher's variables; each error names the launcher and a remedy.
class Reader {
public:
  Reader(const Environment &env, World::Source source) : env(env) {
    w.source = source;
    switch (source) {
    case World::Source::torchrun:
      remedy = "start with torchrun, or remove RANK and WORLD_SIZE from the environment";
      break;
    case World::Source::openMpi:
      remedy = "start with mpirun, or remove the OMPI_COMM_WORLD_ variables from the environment";
      break;
    case World::Source::slurm:
      remedy = "start with srun, or remove the SLURM_ variables from the environment";
      break;
    default:
      remedy = "let `gptrun PLAN --nodes N` set the GPTC_ variables, or remove them from the environment";
    }
  }

  std::optional<std::string> text(const char *name) const { return env(name); }
  std::string needText(const char *name) const {
    auto v = env(name);
    if (!v || v->empty())
      unclear(fmt::format("{} is not set, beside other variables of {}", name, w.startedBy()), remedy);
    return *v;
  }
  int number(const char *name, const std::string &value, long least, long most) const {
    const std::optional<long> n = parseNumber(value, least, most);
    if (!n)
      unclear(fmt::format("{}={} is no number from {} to {}", name, value, least, most), remedy);
    return int(*n);
  }
  int need(const char *name, long least, long most) const { return number(name, needText(name), least, most); }
  int get(const char *name, long least, long most, int otherwise) const {
    auto v = env(name);
    return v && !v->empty() ? number(name, *v, least, most) : otherwise;
  }

  /// Derives the other numbers from rank, size, localRank and ranksPerNode, and checks that they are consistent.
  void shape(const char *rankName, const char *sizeName, const char *localName, const char *perNodeName) {
    auto named = [&](const char *name, int value) { return fmt::format("{}={}", name, value); };
    if (w.rank >= w.size)
      unclear(fmt::format("{} with {}: ranks count from 0", named(rankName, w.rank), named(sizeName, w.size)), remedy);
    if (w.localRank >= w.ranksPerNode)
      unclear(fmt::format("{}, but there are {} ranks on this machine ({})", named(localName, w.localRank),
                          w.ranksPerNode, perNodeName),
              remedy);
    if (w.size % w.ranksPerNode)
      unclear(fmt::format("{} ranks ({}) are not a whole number of machines with {} ranks each ({})", w.size, sizeName,
                          w.ranksPerNode, perNodeName),
              "start as many ranks on each machine");
    w.nodes = w.size / w.ranksPerNode;
    w.node = w.rank / w.ranksPerNode;
    if (w.rank % w.ranksPerNode != w.localRank)
      unclear(fmt::format("{} with {}, at {} ranks per machine: ranks must count machine by machine",
                          named(rankName, w.rank), named(localName, w.localRank), w.ranksPerNode),
              w.source == World::Source::slurm     ? "srun --distribution=block"
              : w.source == World::Source::openMpi ? "mpirun --map-by slot"
                                                   : remedy);
  }

  const Environment &env;
  std::string remedy;
  World w;
};

uint32_t hash32(const std::string &text) {
  return uint32_t(std::strtoul(blake3(text).substr(0, 8).c_str(), nullptr, 16));
}

/// A port for a job, the same on all its ranks, below the range of automatically assigned ports.
int portOf(const std::string &job) { return 20000 + int(hash32("port of " + job) % 12000); }

/// Reads a secret from a file that only this user can read.
std::string readToken(const std::string &file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    throw UserError(ErrorCode::FileMissing, fmt::format("cannot read GPTC_TOKEN_FILE={}: {}", file, strerror(errno)));
  struct stat s{};
  std::array<char, 4096> content;
  const bool known = ::fstat(fd, &s) == 0;
  const ssize_t n = known && S_ISREG(s.st_mode) ? ::read(fd, content.data(), content.size()) : -1;
  ::close(fd);
  if (n < 0)
    unclear(fmt::format("GPTC_TOKEN_FILE={} is no file", file), "head -c 32 /dev/urandom | base64 > FILE");
  if (s.st_uid != ::geteuid() || (s.st_mode & 077))
    unclear(fmt::format("GPTC_TOKEN_FILE={} can be read or written by others", file),
            fmt::format("chmod 600 {}; and write a new token into it", file));
  std::string token = llvm::StringRef(content.data(), size_t(n)).trim().str();
  if (token.size() < 16)
    unclear(fmt::format("GPTC_TOKEN_FILE={} holds {} characters; a token needs 16", file, token.size()),
            fmt::format("head -c 32 /dev/urandom | base64 > {}", file));
  return token;
}

/// Sets address and token under another launcher. `job`: a text common to all ranks of this run, but to no other run at
/// the same time.
void meet(Reader &r, const std::string &job, std::optional<NetAddress> address) {
  World &w = r.w;
  if (auto given = r.text("GPTC_RENDEZVOUS"); given && !given->empty()) {
    address = NetAddress::parse(*given);
    if (!address)
      unclear(fmt::format("GPTC_RENDEZVOUS={} is no HOST:PORT", *given), "for example GPTC_RENDEZVOUS=node1:23456");
  }
  if (!address)
    unclear(fmt::format("{} does not say on which machine rank 0 is", w.startedBy()),
            "set GPTC_RENDEZVOUS=HOST:PORT for all ranks, HOST being the machine of rank 0");
  w.rendezvous = *address;
  // A user's secret may have any length, but a rendezvous token may not; our launcher's is a token already.
  auto secret = [&](const std::string &chosen) {
    w.token = w.source == World::Source::launcher ? chosen : blake3("gptc token " + chosen);
    w.tokenIsSecret = true;
  };
  if (auto token = r.text("GPTC_TOKEN"); token && !token->empty()) {
    secret(*token);
  } else if (auto file = r.text("GPTC_TOKEN_FILE"); file && !file->empty()) {
    secret(readToken(*file));
  } else {
    w.token = blake3(fmt::format("gptc job {} of user {}", job, ::geteuid()));
  }
}

World fromLauncher(const Environment &env) {
  Reader r(env, World::Source::launcher);
  World &w = r.w;
  w.size = r.need("GPTC_WORLD", 1, kMostRanks);
  w.rank = r.need("GPTC_RANK", 0, kMostRanks - 1);
  w.localRank = r.get("GPTC_LOCAL_RANK", 0, kMostRanks - 1, w.rank);
  w.ranksPerNode = r.get("GPTC_LOCAL_WORLD", 1, kMostRanks, r.text("GPTC_LOCAL_RANK") ? 1 : w.size);
  r.shape("GPTC_RANK", "GPTC_WORLD", "GPTC_LOCAL_RANK", "GPTC_LOCAL_WORLD");
  w.restarts = r.get("GPTC_RESTARTS", 0, kMostRanks, 0);
  w.input = r.get("GPTC_INPUT", 0, INT_MAX, -1);
  if (auto most = r.text("GPTC_RESUME_AT_MOST")) {
    const std::optional<long> step = parseNumber(*most, 0, long(1) << 40);
    if (!step)
      unclear(fmt::format("GPTC_RESUME_AT_MOST={} is no step", *most), r.remedy);
    w.resumeAtMost = *step;
  }
  if (w.size > 1) {
    if (auto secret = r.text("GPTC_TOKEN"), file = r.text("GPTC_TOKEN_FILE"); !secret && !file)
      unclear("GPTC_TOKEN is not set, beside other variables of gptrun's launcher", r.remedy);
    r.needText("GPTC_RENDEZVOUS");
    meet(r, "", std::nullopt);
  }
  return w;
}

World fromTorchrun(const Environment &env) {
  Reader r(env, World::Source::torchrun);
  World &w = r.w;
  w.rank = r.need("RANK", 0, kMostRanks - 1);
  w.size = r.need("WORLD_SIZE", 1, kMostRanks);
  w.localRank = r.need("LOCAL_RANK", 0, kMostRanks - 1);
  w.ranksPerNode = r.get("LOCAL_WORLD_SIZE", 1, kMostRanks, w.size);
  r.shape("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  w.restarts = r.get("TORCHELASTIC_RESTART_COUNT", 0, kMostRanks, 0);
  if (w.size > 1) {
    // torchrun itself listens at MASTER_PORT.
    const NetAddress theirs{r.needText("MASTER_ADDR"), r.need("MASTER_PORT", 1, 65535)};
    NetAddress ours = theirs;
    ours.port = theirs.port < 65535 ? theirs.port + 1 : theirs.port - 1;
    meet(r, fmt::format("torchrun {} {}", r.text("TORCHELASTIC_RUN_ID").value_or(""), theirs.str()), ours);
  }
  return w;
}

World fromOpenMpi(const Environment &env) {
  Reader r(env, World::Source::openMpi);
  World &w = r.w;
  w.rank = r.need("OMPI_COMM_WORLD_RANK", 0, kMostRanks - 1);
  w.size = r.need("OMPI_COMM_WORLD_SIZE", 1, kMostRanks);
  w.localRank = r.need("OMPI_COMM_WORLD_LOCAL_RANK", 0, kMostRanks - 1);
  w.ranksPerNode = r.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMostRanks, w.size);
  r.shape("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  if (w.size > 1) {
    std::string job = "mpirun";
    for (const char *name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"})
      job += " " + r.text(name).value_or("");
    std::optional<NetAddress> here;
    if (w.nodes == 1)
      here = NetAddress{"127.0.0.1", portOf(job)};
    meet(r, job, here);
  }
  return w;
}

World fromSlurm(const Environment &env) {
  Reader r(env, World::Source::slurm);
  World &w = r.w;
  w.rank = r.need("SLURM_PROCID", 0, kMostRanks - 1);
  // The step's number of tasks may differ from the job's.
  const char *sizeName = r.text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  w.size = r.need(sizeName, 1, kMostRanks);
  w.localRank = r.need("SLURM_LOCALID", 0, kMostRanks - 1);
  const char *listName = r.text("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  const std::string list = r.needText(listName);
  const auto hosts = parseHostList(list);
  if (!hosts)
    unclear(fmt::format("{}={} is no list of machines", listName, list), r.remedy);
  const char *perNodeName = listName;
  const int nodes = int(hosts->size());
  w.ranksPerNode = std::max(1, w.size / nodes);
  if (auto tasks = r.text("SLURM_STEP_TASKS_PER_NODE"); tasks && !tasks->empty()) {
    perNodeName = "SLURM_STEP_TASKS_PER_NODE";
    const auto counts = parseTasksPerNode(*tasks);
    if (!counts)
      unclear(fmt::format("SLURM_STEP_TASKS_PER_NODE={} is no list of counts", *tasks), r.remedy);
    for (int n : *counts)
      if (n != counts->front())
        unclear(fmt::format("SLURM_STEP_TASKS_PER_NODE={}: machines with different numbers of ranks", *tasks),
                "start as many on each: srun --nodes=N --ntasks-per-node=K");
    w.ranksPerNode = counts->front();
  }
  r.shape("SLURM_PROCID", sizeName, "SLURM_LOCALID", perNodeName);
  if (w.nodes != nodes)
    unclear(fmt::format("{} ranks ({}) at {} per machine are {} machines, but {}={} are {}", w.size, sizeName,
                        w.ranksPerNode, w.nodes, listName, list, nodes),
            "start as many ranks on each machine: srun --nodes=N --ntasks-per-node=K");
  if (const int node = r.get("SLURM_NODEID", 0, kMostRanks - 1, w.node); node != w.node)
    unclear(fmt::format("SLURM_PROCID={} at {} ranks per machine is on machine {}, but SLURM_NODEID={}", w.rank,
                        w.ranksPerNode, w.node, node),
            "srun --distribution=block");
  if (w.size > 1) {
    const std::string job =
        fmt::format("slurm {} {} {}", r.needText("SLURM_JOB_ID"), r.text("SLURM_STEP_ID").value_or(""),
                    r.text("SLURM_RESTART_COUNT").value_or(""));
    meet(r, job, NetAddress{hosts->front(), portOf(job)});
  }
  return w;
}

/// Whether a variable is set and not empty.
bool says(const Environment &env, const char *name) {
  auto v = env(name);
  return v && !v->empty();
}

}  // namespace

std::optional<std::string> processEnvironment(const char *name) {
  const char *v = llvm::StringRef(name).starts_with("GPTC_") ? ownVariable(name) : std::getenv(name);
  return v ? std::optional<std::string>(v) : std::nullopt;
}

std::string NetAddress::str() const { return hostAndPort(host, uint16_t(port)); }

std::optional<NetAddress> NetAddress::parse(const std::string &text) {
  llvm::StringRef host = text, port;
  std::tie(host, port) = llvm::StringRef(text).rsplit(':');
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed)
    host = host.drop_front().drop_back();
  const std::optional<long> number = parseNumber(port.str(), 1, 65535);
  if (!number || host.empty() || host.contains('[') || host.contains(']') || (!bracketed && host.contains(':')))
    return std::nullopt;
  return NetAddress{host.str(), int(*number)};
}

const char *World::startedBy() const {
  switch (source) {
  case Source::alone:
    return "the command line";
  case Source::launcher:
    return "gptrun's launcher";
  case Source::torchrun:
    return "torchrun";
  case Source::openMpi:
    return "mpirun";
  case Source::slurm:
    return "srun";
  }
  GPTC_UNREACHABLE("source {}", int(source));
}

static World placeOf(const Environment &env) {
  if (says(env, "RANK") || says(env, "WORLD_SIZE"))
    return fromTorchrun(env);
  if (says(env, "OMPI_COMM_WORLD_RANK") || says(env, "OMPI_COMM_WORLD_SIZE"))
    return fromOpenMpi(env);
  // A batch script has SLURM_PROCID too, but only what srun starts is part of a step.
  if (says(env, "SLURM_PROCID") && (says(env, "SLURM_STEP_NODELIST") || says(env, "SLURM_STEP_NUM_TASKS")))
    return fromSlurm(env);
  return {};
}

World World::find(const Environment &env) {
  if (says(env, "GPTC_RANK") || says(env, "GPTC_WORLD"))
    return fromLauncher(env);
  World w = placeOf(env);
  // Slurm counts how often it has started a job again, whatever launches ranks in the job.
  w.restarts += Reader(env, Source::slurm).get("SLURM_RESTART_COUNT", 0, kMostRanks, 0);
  Reader r(env, w.source);
  r.remedy = "GPTC_RESTARTS counts how often the run has been started again: set it so, or remove it";
  w.restarts += r.get("GPTC_RESTARTS", 0, kMostRanks, 0);
  return w;
}

}  // namespace gptc
