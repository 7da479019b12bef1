// In gptrun's place in the launcher's tests.
//
//   fake_gptrun launch NAME=VALUE... -- INSTRUCTION...   launches ranks that follow the instructions, or with
//                                                        program=PATH others, whose words these are; texts=1: as
//                                                        those that continue texts, without logs
//   fake_gptrun --agent                                  serves a launcher on another machine
//   fake_gptrun rank OUT_DIR INSTRUCTION...              one rank
//
// A rank does `steps` steps of `ms` milliseconds, at the end of each of which it waits for all others; rank 0 saves
// every 5 steps, and all resume from what it saved. On SIGTERM all end after the same step and rank 0 saves; a rank
// that the others wait for in vain makes them fail. Instructions: steps:N, ms:N, and RANK:STEP:ACTION[:ATTEMPT] for
// what a rank does once STEP steps are done (-1: before any rank trains), in every attempt or in one (from 1):
// kill=SIGNAL, exit=CODE, error=CODE, stop, spin, busy=MS, slow=MS (longer steps from then on), print, deaf (SIGTERM is
// ignored), starting (SIGTERM ends it, as before a rank has anything to save), rogue (prints an error and goes on),
// child (leaves a process behind and dies), lingers=MS (the process ends so much later than its errors).
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/launch/host_list.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/pulse.h"
#include "runtime/launch/remote_crew.h"
#include "runtime/launch/world.h"
#include "runtime/rendezvous/rendezvous.h"
#include "support/diagnostics.h"
#include "support/files.h"

#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

using namespace gptc;
namespace fs = std::filesystem;
using std::chrono::milliseconds;

namespace {

volatile std::sig_atomic_t stopping = 0;
milliseconds lingers{0};

std::vector<int64_t> savedSteps(const std::string &outDir) {
  std::vector<int64_t> steps;
  std::error_code e;
  for (auto &entry : fs::directory_iterator(outDir, e))
    if (llvm::StringRef name = entry.path().filename().c_str(); name.consume_front("saved-"))
      steps.push_back(std::stoll(name.str()));
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

/// What the ranks of an attempt have in common.
struct Shared {
  std::atomic<int64_t> stopAt;
  std::array<std::atomic<int64_t>, 16> steps;  // that a rank has come to

  static Shared &of(const std::string &file) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(Shared)) != 0)
      ::abort();
    return *static_cast<Shared *>(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  }
  /// As a collective does: throws what the rendezvous says where the others cannot come any more.
  void wait(const RendezvousClient &ranks, int64_t step) {
    steps[ranks.rank] = step;
    while (!std::all_of(steps.begin(), steps.begin() + ranks.world, [&](auto &s) { return s >= step; })) {
      if (const RankFailure *f = ranks.failure())
        throw UserError(f->code, "told: " + f->text);
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
};

struct Instruction {
  int rank = 0, step = 0, attempt = 0;
  std::string action;
  int value = 0;
};

/// Does what the instruction says to its rank; `own`: milliseconds of a step from then on. An exit code ends the rank.
std::optional<int> obey(const Instruction &i, int &own) {
  if (i.action == "kill") {
    ::raise(i.value);
  } else if (i.action == "exit") {
    std::exit(i.value);
  } else if (i.action == "error" || i.action == "rogue") {
    const ErrorCode code = i.value == 6   ? ErrorCode::CollectiveTimeout
                           : i.value == 4 ? ErrorCode::NonFinite
                                          : ErrorCode::FileMissing;
    const UserError e(code, fmt::format("rank {} says what is wrong", i.rank), "so and so");
    fmt::print(stderr, "{}", e.what());
    if (i.action == "error")
      return e.exitCode();
  } else if (i.action == "lingers") {
    lingers = milliseconds(i.value);
  } else if (i.action == "stop") {
    ::raise(SIGSTOP);
  } else if (i.action == "spin") {
    for (volatile bool forever = true; forever;)
      ;
  } else if (i.action == "busy") {
    Pulse::Busy busy("saving a checkpoint");
    std::this_thread::sleep_for(milliseconds(i.value));
  } else if (i.action == "slow") {
    own = i.value;
  } else if (i.action == "print") {
    fmt::print("out of rank {}\n", i.rank);
    std::fflush(stdout);
    fmt::print(stderr, "err of rank {}\n", i.rank);
  } else if (i.action == "deaf") {
    ::signal(SIGTERM, SIG_IGN);
  } else if (i.action == "starting") {
    ::signal(SIGTERM, SIG_DFL);
  } else if (i.action == "child") {
    if (::fork() == 0)
      for (;;)
        ::pause();
    ::raise(SIGKILL);
  }
  return std::nullopt;
}

int rank(const std::string &outDir, const std::vector<std::string> &words) {
  const World world = World::find();
  int steps = 20, ms = 10;
  std::vector<Instruction> todo;
  for (const std::string &word : words) {
    llvm::SmallVector<llvm::StringRef> part;
    llvm::StringRef(word).split(part, ':');
    if (part[0] == "steps" || part[0] == "ms") {
      (part[0] == "ms" ? ms : steps) = std::stoi(part[1].str());
      continue;
    }
    Instruction i{std::stoi(part[0].str()), std::stoi(part[1].str())};
    auto [action, value] = part[2].split('=');
    i.action = action.str();
    i.value = value.empty() ? 0 : std::stoi(value.str());
    i.attempt = part.size() > 3 ? std::stoi(part[3].str()) : 0;
    todo.push_back(i);
  }
  int attempt = 1;
  const std::string mine = fmt::format("{}/attempt-{}-", outDir, world.rank);
  while (fs::exists(mine + std::to_string(attempt)))
    ++attempt;
  std::ofstream(mine + std::to_string(attempt))
      << ::getpid() << " " << world.resumeAtMost << " " << world.rendezvous.str() << " "
      << std::thread::hardware_concurrency() << " " << world.restarts << "\n";
  struct sigaction a{};
  a.sa_handler = [](int) { stopping = 1; };
  ::sigaction(SIGTERM, &a, nullptr);
  int own = ms;
  auto obeyAll = [&](int64_t step) -> std::optional<int> {
    for (const Instruction &i : todo)
      if (i.step == step && i.rank == world.rank && (!i.attempt || i.attempt == attempt))
        if (std::optional<int> code = obey(i, own))
          return code;
    return std::nullopt;
  };
  int64_t step = 0;
  for (int64_t s : savedSteps(outDir))
    if (world.resumeAtMost < 0 || s <= world.resumeAtMost) {
      step = s;
      break;
    }
  Pulse &pulse = Pulse::get();
  RendezvousClient ranks({.host = world.rendezvous.host,
                          .port = uint16_t(world.rendezvous.port),
                          .token = world.token,
                          .rank = world.rank,
                          .world = world.size,
                          .timeout = milliseconds(5000)});
  ranks.barrier("come", milliseconds(5000));
  if (std::optional<int> code = obeyAll(-1))
    return *code;
  ranks.barrier("begin", milliseconds(5000));
  pulse.step(step);
  fmt::print("rank {} begins at step {}\n", world.rank, step);
  std::fflush(stdout);
  Shared &shared = Shared::of(fmt::format("{}/shared-{}", outDir, attempt));
  for (;; ++step, pulse.step(step)) {
    if (std::optional<int> code = obeyAll(step))
      return *code;
    // The others are at this step or in the next: all can stop behind that one.
    if (int64_t never = 0; stopping)
      shared.stopAt.compare_exchange_strong(never, step + 1);
    const bool last = step >= steps || (shared.stopAt && step >= shared.stopAt);
    if (world.rank == 0 && (last || (step > 0 && step % 5 == 0)))
      std::ofstream(fmt::format("{}/saved-{}", outDir, step)) << step;
    if (last)
      break;
    std::this_thread::sleep_for(milliseconds(own));
    Pulse::Collective waiting("all_reduce of 1024 f32");
    shared.wait(ranks, step + 1);
  }
  ranks.leave();
  fmt::print("rank {} ends at step {}\n", world.rank, step);
  return 0;
}

int launchAsTold(const std::vector<std::string> &words, const std::string &self) {
  LaunchOptions o;
  bool texts = false;
  size_t i = 0;
  for (; i < words.size() && words[i] != "--"; ++i) {
    auto [name, text] = llvm::StringRef(words[i]).split('=');
    const int value = parseNumber(text.str(), 0, 1 << 30).value_or(0);
    const milliseconds time(value);
    if (name == "nodes")
      o.nodes = value;
    else if (name == "ranks")
      o.ranksPerNode = value;
    else if (name == "hosts")
      o.hosts = *parseHostList(text.str()), o.nodes = int(o.hosts.size());
    else if (name == "out")
      o.outDir = text.str();
    else if (name == "program")
      o.command = {text.str()};
    else if (name == "texts")
      texts = value > 0;
    else if (name == "restarts")
      o.restarts = value;
    else if (name == "silence")
      o.watch.silence = time;
    else if (name == "window")
      o.watch.window = time;
    else if (name == "grace")
      o.grace = time;
    else if (name == "settle")
      o.settle = time;
    else if (name == "hostSilence")
      o.hostSilence = time;
    else if (name == "patience")
      o.patience = time;
  }
  o.pause = milliseconds(10);
  o.address = "127.0.0.1";
  o.agent = {self, "--agent"};
  const bool real = !o.command.empty();
  if (!real)
    o.command = {self, "rank", o.outDir};
  o.command.insert(o.command.end(), words.begin() + i + 1, words.end());
  if (texts)
    o.outDir = "", o.outputIsOfRanks = true, o.restarts = 0;
  o.checkpoints = [&] { return real ? CheckpointStore(o.outDir).steps() : savedSteps(o.outDir); };
  return launch(o);
}

}  // namespace

int main(int argc, char **argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  try {
    if (words.at(0) == "--agent")
      return runAgent(0, 1);
    if (words[0] == "rank") {
      const int code = rank(words.at(1), {words.begin() + 2, words.end()});
      std::this_thread::sleep_for(lingers);
      return code;
    }
    return launchAsTold({words.begin() + 1, words.end()}, self);
  } catch (const UserError &e) {
    std::fflush(stdout);
    fmt::print(stderr, "{}", e.what());
    return e.exitCode();
  }
}
