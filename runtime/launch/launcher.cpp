#include "runtime/launch/launcher.h"

#include "runtime/launch/remote_crew.h"
#include "runtime/launch/stops.h"
#include "runtime/rendezvous/rendezvous.h"
#include "support/cpus.h"
#include "support/diagnostics.h"
#include "support/files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <future>
#include <poll.h>
#include <thread>
#include <unistd.h>

extern char **environ;

namespace gptc {
namespace {

using Clock = RankWatch::Clock;

constexpr auto kBetweenLooks = std::chrono::milliseconds(50);
constexpr int kInterrupted = 130;
constexpr int kUnread = 128 + SIGPIPE;  // no rank's exit code
/// A rank with a heartbeat older than this is the likely cause of the others' errors.
constexpr auto kSuspicious = std::chrono::milliseconds(1000);

// ---- signals --------------------------------------------------------------------------------------------------------

Stops gStops;

void onStop(int number) { gStops.note(number); }

class CatchStops {
public:
  CatchStops() {
    gStops.clear();
    struct sigaction a{};
    a.sa_handler = onStop;
    for (size_t i = 0; i < signals.size(); ++i) {
      ::sigaction(signals[i], nullptr, &old[i]);
      if (signals[i] != SIGHUP || old[i].sa_handler != SIG_IGN)  // nohup stays in force
        ::sigaction(signals[i], &a, nullptr);
    }
    a.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &a, &oldPipe);  // from an ssh that has ended
  }
  ~CatchStops() {
    // One stop may arrive as two signals, the second after a good end: keep catching it until the process ends.
    for (size_t i = 0; i < signals.size() && gStops.count() == 0; ++i)
      ::sigaction(signals[i], &old[i], nullptr);
    ::sigaction(SIGPIPE, &oldPipe, nullptr);
  }

private:
  static constexpr std::array<int, 3> signals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, 3> old;
  struct sigaction oldPipe;
};

// ---- words ----------------------------------------------------------------------------------------------------------

/// The text as lines of standard error: rank 0's live line may be on the terminal.
std::string asLines(const std::string &text) {
  return (::isatty(STDERR_FILENO) && ::isatty(STDOUT_FILENO) ? "\n" : "") + text + "\n";
}

/// Must not fail if nobody reads it. While there are ranks, Attempt::print says it.
void say(const std::string &text) { writeAll(STDERR_FILENO, asLines(text)); }

std::string signalName(int number) {
  const char *name = ::sigabbrev_np(number);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

/// Why an attempt ended.
struct Cause {
  int rank = -1;
  std::string text;          // one line
  std::string words;         // the rank's own coded errors
  int code = 0;              // the rank's exit code; 0: none
  bool unreachable = false;  // its machine could never be reached
  /// Whether a retry would fail the same way: usage, configuration, resources, damaged input.
  bool final() const { return code >= 2 && code <= 5 && !words.empty(); }
};

Cause causeOf(const RankStatus &r) {
  const RankEnd &e = *r.end;
  if (e.signal)
    return {r.rank, fmt::format("{} was killed by {}{}", nameOf(r), signalName(e.signal), placeOf(r)), "", 0};
  std::string text = fmt::format("{} ended with exit code {}{}", nameOf(r), e.code, placeOf(r));
  if (!e.error.empty())
    text = fmt::format("{} failed{}: {}", nameOf(r), placeOf(r), llvm::StringRef(e.error).split('\n').first.str());
  return {r.rank, text, e.error, e.code};
}

// ---- one attempt ----------------------------------------------------------------------------------------------------

class Attempt {
public:
  /// `restarts`: as World's, without those of whoever restarted the launcher.
  Attempt(const LaunchOptions &o, int restarts, int64_t resumeAtMost)
      : o(o), world(o.nodes * o.ranksPerNode), token(newToken()),
        meeting({.address = o.hosts.empty() ? "127.0.0.1" : "0.0.0.0", .token = token, .world = world}),
        watch(world, o.watch) {
    CrewPlan plan;
    plan.command = o.command;
    plan.folder = absolutePath(".");
    plan.outDir = o.outDir;
    plan.token = token;
    plan.world = world;
    plan.resumeAtMost = resumeAtMost;
    plan.restarts = o.restartsBefore + restarts;
    if (o.hosts.empty()) {
      plan.ranks = world;
      plan.rendezvous = hostAndPort("127.0.0.1", meeting.port());
      crews.push_back(startCrewHere(plan, voice(STDOUT_FILENO, o.input)));
      return;
    }
    plan.ranks = o.ranksPerNode;
    plan.nodes = o.nodes;
    plan.rendezvous = hostAndPort(o.address.empty() ? hostName() : o.address, meeting.port());
    plan.environment = passedOn();
    for (plan.node = 0; plan.node < plan.nodes; ++plan.node)
      crews.push_back(startCrewAt(o.hosts[plan.node], plan, voice(-1), {o.agent, o.hostSilence}));
  }

  /// Waits until all ranks have ended. Returns the cause unless all ended well.
  std::optional<Cause> run() {
    for (;;) {
      wait();
      const Clock::time_point now = Clock::now();
      bool ended = true;
      std::vector<RankStatus> seen;  // until it is complete, a stop while a reader pauses finds what was seen before
      for (auto &crew : crews) {
        crew->update();
        ended = ended && (crew->done() || !crew->lost().empty());
        seen.insert(seen.end(), crew->ranks.begin(), crew->ranks.end());
      }
      ranks = std::move(seen);
      watch.look(ranks, now);
      obeySignals(now);
      if (!cause)
        findCause(now, ended);
      if (ended)
        return cause;
      if (!cause && !failedAt)
        if (auto slow = watch.slow())
          print(STDERR_FILENO, asLines(fmt::format("note: {} {}", nameOf(ranks[slow->rank]), slow->what)));
      if (endAt && now >= *endAt) {
        signal(SIGKILL);
        endAt = now + std::chrono::seconds(1);
      } else if (cause && now >= *idleEndAt) {
        for (const RankStatus &r : ranks)
          if (!r.end && r.pulse.doing != Pulse::saving)
            crewOf(r.rank).signal(SIGKILL, r.rank);
        idleEndAt = now + std::chrono::seconds(1);
      }
    }
  }

  /// The furthest step of any rank, and the step where ranks began; -1: unknown.
  int64_t lastStep() const { return furthest(&PulseView::step); }
  int64_t firstStep() const { return furthest(&PulseView::begin); }
  bool anyKilledByUs() const { return killed; }
  bool anyEndedByTerm() const { return anyEndedBy(SIGTERM); }
  /// Whether ranks have ended because nobody reads their output.
  bool unread() const { return o.outputIsOfRanks && (unreadHere || anyEndedBy(SIGPIPE)); }
  /// What failed ranks said that no log has.
  std::string lastWords() const {
    std::string all;
    for (const RankStatus &r : ranks) {
      if (!r.end || r.end->good())
        continue;
      for (llvm::StringRef said = r.end->said; !said.empty();) {
        const auto [line, rest] = said.split('\n');
        all += fmt::format("rank {}: {}\n", r.rank, line.str());
        said = rest;
      }
    }
    return all;
  }

private:
  const LaunchOptions &o;
  const int world;
  const std::string token;
  RendezvousServer meeting;
  RankWatch watch;
  std::vector<std::unique_ptr<Crew>> crews;
  std::vector<RankStatus> ranks;
  std::optional<Cause> cause;
  std::optional<Clock::time_point> failedAt;   // when the first failure was seen
  std::vector<int> failed;                     // failed ranks, in the order in which they were noticed
  std::optional<Clock::time_point> endAt;      // time of SIGKILL
  std::optional<Clock::time_point> idleEndAt;  // the same for ranks that are not saving
  int stopsSeen = 0;
  bool killed = false;
  bool unreadHere = false;  // the output of a rank 0 on another machine
  bool isLeft = false;      // a reader that does not resume

  bool anyEndedBy(int number) const {
    return std::any_of(ranks.begin(), ranks.end(), [&](auto &r) { return r.end && r.end->signal == number; });
  }

  Voice voice(int direct, int input = -1) {
    return {direct, [this](llvm::StringRef s) { print(STDOUT_FILENO, s); },
            [this](llvm::StringRef s) { print(STDERR_FILENO, s); }, input};
  }

  /// Prints for rank 0 and for this process, and waits if the reader pauses: a thread of its own writes, and meanwhile
  /// other machines hear of this process and stops are obeyed. If the reader does not resume after a stop, the thread
  /// is left behind with it, and what would be printed from then on is dropped.
  void print(int fd, llvm::StringRef s) {
    if (isLeft)
      return;
    std::future<int> written = writeAside(fd, s.str());
    std::optional<Clock::time_point> leaveAt;
    while (written.wait_for(kBetweenLooks) != std::future_status::ready) {
      for (auto &crew : crews)
        crew->greet();
      const Clock::time_point now = Clock::now();
      obeySignals(now);
      if (stopsSeen > 0 && !leaveAt)
        leaveAt = now + o.patience;
      isLeft = isLeft || stopsSeen >= 2 || (leaveAt && now >= *leaveAt);
      if (isLeft)
        return;
    }
    // If the reader of the samples goes away, the run stops, as it does if rank 0 writes to standard output itself.
    const bool isGone = written.get() == EPIPE && fd == STDOUT_FILENO;
    if (isGone && !std::exchange(unreadHere, true) && gStops.count() == 0)
      gStops.note(SIGPIPE);
  }

  /// The part of this machine's environment that other machines need.
  static std::vector<std::string> passedOn() {
    std::vector<std::string> entries;
    for (char **e = environ; *e; ++e)
      for (const char *prefix : {"GPTC_", "NCCL_", "CUDA_", "LD_LIBRARY_PATH=", "NO_COLOR="})
        if (std::strncmp(*e, prefix, std::strlen(prefix)) == 0)
          entries.push_back(*e);
    return entries;
  }

  int64_t furthest(int64_t PulseView::*what) const {
    int64_t most = -1;
    for (const RankStatus &r : ranks)
      most = std::max(most, r.pulse.*what);
    return most;
  }

  void wait() const {
    std::vector<int> fds;
    for (auto &crew : crews)
      crew->addDescriptors(fds);
    std::vector<pollfd> polled;
    for (int fd : fds)
      polled.push_back({fd, POLLIN, 0});
    ::poll(polled.data(), polled.size(), int(kBetweenLooks.count()));
  }

  void signal(int number) {
    for (auto &crew : crews)
      crew->signal(number);
    killed = killed || number == SIGKILL;
  }

  void obeySignals(Clock::time_point now) {
    const int stops = gStops.count();
    if (stops == std::exchange(stopsSeen, stops))
      return;
    if (stops >= 2) {
      signal(SIGKILL);
      endAt = now + std::chrono::seconds(1);
      return;
    }
    signal(SIGTERM);  // before the words, whose reader may pause
    if (!unread())
      print(STDERR_FILENO,
            asLines(o.outDir.empty() ? "stopping; once more to end at once"
                    : lastStep() < 0
                        ? "stopping: ranks are still starting and end as soon as they can; once more to end at once"
                        : "stopping: ranks finish their step and save; once more to end at once"));
  }

  void findCause(Clock::time_point now, bool allEnded) {
    if (stopsSeen >= 2)
      return;
    for (const RankStatus &r : ranks)
      if (r.end && !r.end->good() && !(stopsSeen && r.end->signal == SIGTERM) &&
          !(o.outputIsOfRanks && r.end->signal == SIGPIPE) &&
          std::find(failed.begin(), failed.end(), r.rank) == failed.end())
        failed.push_back(r.rank);
    for (auto &crew : crews)
      if (std::string why = crew->lost(); !why.empty() && !crew->done())
        return fail({crew->ranks.front().rank, why, "", 0, crew->ranks.front().pid == 0}, now);
    if (failed.empty()) {
      if (auto stuck = watch.stuck()) {
        const RankStatus &r = ranks[stuck->rank];
        fail({r.rank, fmt::format("{} {}{}", nameOf(r), stuck->what, placeOf(r)), "", 0}, now);
      }
      return;
    }
    if (!failedAt)
      failedAt = now;
    // Failed ranks that blame others (exit code 6) may follow from a rank whose end has not been noticed yet ...
    auto follows = [&](int rank) { return ranks[rank].end->code == exitCodeOf(ErrorCode::RankFailed); };
    auto first = std::find_if_not(failed.begin(), failed.end(), follows);
    // ... or from a rank that a stop ended during its start, with nothing to save.
    if (first == failed.end() && stopsSeen && (anyEndedByTerm() || !allEnded))
      return;
    const int said = saidFirst();
    if (first != failed.end())
      return fail(causeOf(ranks[follows(said) ? *first : said]), now);
    if (now - *failedAt < o.settle && !allEnded)
      return;
    if (auto silent = watch.silent(kSuspicious)) {
      const RankStatus &r = ranks[silent->rank];
      return fail({r.rank, fmt::format("{} {}{}", nameOf(r), silent->what, placeOf(r)), "", 0}, now);
    }
    fail(causeOf(ranks[said]), now);
  }

  /// Of the failed ranks, the one that reported first or was missed first, because processes end in any order.
  int saidFirst() const {
    const std::optional<RankFailure> known = meeting.failure();
    return known && std::find(failed.begin(), failed.end(), known->rank) != failed.end() ? known->rank : failed.front();
  }

  /// Tells the other ranks, and begins to end them.
  void fail(Cause why, Clock::time_point now) {
    cause = std::move(why);
    meeting.fail({cause->rank, ErrorCode::RankFailed, cause->text});
    signal(SIGTERM);
    if (!endAt)
      endAt = now + o.grace;
    // Only a checkpoint being written is worth waiting for. The other ranks have been told; one that did not hear of it
    // has lost its connection, or is compiling what it will compile again.
    idleEndAt = now + std::min(o.grace, o.briefGrace);
    if (const RankStatus &r = ranks[cause->rank]; !r.end)
      crewOf(r.rank).signal(SIGKILL, r.rank);  // a stopped process reacts to no other signal
  }

  Crew &crewOf(int rank) {
    for (auto &crew : crews)
      if (rank <= crew->ranks.back().rank)
        return *crew;
    GPTC_UNREACHABLE("rank {} of {}", rank, world);
  }
};

/// Waits; returns early if a signal asks to stop.
bool pauseFor(std::chrono::milliseconds time) {
  for (const auto until = Clock::now() + time; Clock::now() < until && gStops.count() == 0;)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return gStops.count() == 0;
}

void sayWhatStarts(const LaunchOptions &o) {
  const int world = o.nodes * o.ranksPerNode;
  const std::string where =
      o.hosts.empty() ? "on this machine" : fmt::format(", {} on each of {}", o.ranksPerNode, fmt::join(o.hosts, ", "));
  const std::string starts = fmt::format("{} ranks{}{}", world, o.hosts.empty() ? " " : "", where);
  if (o.outputIsOfRanks)
    say("note: " + starts);
  else
    writeAll(STDOUT_FILENO, starts + "\n");
  const auto cpus = int(usableCpuCount());
  if (o.hosts.empty() && world > cpus)
    say(fmt::format("note: {} ranks share {} CPU{}", world, cpus, cpus == 1 ? "" : "s"));
}

/// Repeats the rank's own errors, and names the rank.
int repeat(const Cause &cause) {
  std::fputs(fmt::format("{}  = note: {}\n", cause.words, llvm::StringRef(cause.text).split(':').first.str()).c_str(),
             stderr);
  return cause.code;
}

/// Runs attempts until one ends well, or no other helps. Returns an exit code, or kUnread.
int supervise(const LaunchOptions &o) {
  sayWhatStarts(o);
  std::vector<std::string> failures;
  int64_t resumeAtMost = -1;
  bool trained = false;  // whether an attempt came as far as its first step
  for (int restarts = 0;; ++restarts) {
    Attempt attempt(o, trained ? restarts : 0, resumeAtMost);
    const std::optional<Cause> cause = attempt.run();
    if (!cause)
      return attempt.unread() ? kUnread : attempt.anyKilledByUs() || attempt.anyEndedByTerm() ? kInterrupted : 0;
    if (const std::string words = attempt.lastWords(); !words.empty())
      std::fputs(words.c_str(), stderr);
    if (cause->final() || (!cause->words.empty() && o.restarts == 0))
      return repeat(*cause);
    if (cause->unreachable && restarts == 0)
      throw UserError(ErrorCode::RankFailed, "cannot start ranks: " + cause->text,
                      "`ssh HOST true` must work without a question, and this program and folder be there");
    failures.push_back(cause->text);
    trained = trained || attempt.firstStep() >= 0;
    const std::vector<int64_t> checkpoints = o.checkpoints ? o.checkpoints() : std::vector<int64_t>();
    if (gStops.count() || restarts == o.restarts) {
      Diagnostic d{ErrorCode::RankFailed, cause->text};
      if (restarts > 0) {
        d.message = fmt::format("the run failed {} times, {} of them after a restart", failures.size(), restarts);
        for (const std::string &f : failures)
          d.notes.push_back(f);
      }
      d.help.push_back(o.outDir.empty()
                           ? "run it again; a rank that is killed may have taken too much memory"
                           : fmt::format("what the ranks wrote is in {}/ranks{}", o.outDir,
                                         checkpoints.empty() ? "" : "; run again to go on from the newest checkpoint"));
      throw UserError(d);
    }
    // Where this attempt began, and the checkpoint for the next one.
    auto newest = [&](int64_t below) {
      auto found = std::find_if(checkpoints.begin(), checkpoints.end(), [&](int64_t s) { return s < below; });
      return found == checkpoints.end() ? int64_t(-1) : *found;
    };
    const int64_t none = INT64_MAX;
    const int64_t begun =
        attempt.firstStep() >= 0 ? attempt.firstStep() : newest(resumeAtMost >= 0 ? resumeAtMost + 1 : none);
    std::string from = "from the newest checkpoint";
    if (attempt.lastStep() > begun)
      resumeAtMost = -1;
    else if (const int64_t before = newest(begun); restarts > 0 && attempt.firstStep() >= 0 && before >= 0)
      resumeAtMost = before;  // a failure before the checkpoint was read says nothing about it
    if (resumeAtMost >= 0)
      from = fmt::format("from the checkpoint of step {}: nothing was done beyond step {}", resumeAtMost, begun);
    else if (!trained)
      from = "as it began the first time";
    else if (checkpoints.empty())
      from = "from the beginning: there is no checkpoint yet";
    say(fmt::format("warning: {}\nrestart {} of {}, {}", cause->text, restarts + 1, o.restarts, from));
    if (!pauseFor(o.pause))
      return kInterrupted;
  }
}

}  // namespace

int launch(const LaunchOptions &o) {
  GPTC_CHECK(o.hosts.empty() || int(o.hosts.size()) == o.nodes, "{} hosts, {} nodes", o.hosts.size(), o.nodes);
  int code = 0;
  {
    const CatchStops stops;
    code = supervise(o);
  }
  if (code != kUnread)
    return code;
  ::raise(SIGPIPE);
  return 0;  // whoever started this process has it ignore the signal
}

}  // namespace gptc
