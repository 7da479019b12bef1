#include "runtime/launch/crew.h"

#include "runtime/launch/child_process.h"
#include "runtime/launch/cores.h"
#include "runtime/rendezvous/rendezvous.h"
#include "support/cpus.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "support/json.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern char **environ;

namespace gptc {

std::string CrewPlan::json() const {
  return nlohmann::json{{"command", command},
                        {"environment", environment},
                        {"folder", folder},
                        {"outDir", outDir},
                        {"rendezvous", rendezvous},
                        {"token", token},
                        {"world", world},
                        {"nodes", nodes},
                        {"node", node},
                        {"ranks", ranks},
                        {"resumeAtMost", resumeAtMost},
                        {"restarts", restarts}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<CrewPlan> CrewPlan::parse(const std::string &text) {
  CrewPlan p;
  try {
    const nlohmann::json j = parseJson(text);
    j.at("command").get_to(p.command);
    j.at("environment").get_to(p.environment);
    j.at("folder").get_to(p.folder);
    j.at("outDir").get_to(p.outDir);
    j.at("rendezvous").get_to(p.rendezvous);
    j.at("token").get_to(p.token);
    j.at("world").get_to(p.world);
    j.at("nodes").get_to(p.nodes);
    j.at("node").get_to(p.node);
    j.at("ranks").get_to(p.ranks);
    j.at("resumeAtMost").get_to(p.resumeAtMost);
    j.at("restarts").get_to(p.restarts);
  } catch (const nlohmann::json::exception &) {
    return std::nullopt;
  }
  if (p.command.empty() || p.ranks < 1 || p.node < 0 || p.node >= p.nodes || int64_t(p.nodes) * p.ranks != p.world)
    return std::nullopt;
  return p;
}

std::string nameOf(const RankStatus &r) {
  return r.pid > 0 ? fmt::format("rank {} on {} (pid {})", r.rank, r.host, r.pid)
                   : fmt::format("rank {} on {}", r.rank, r.host);
}

std::string placeOf(const RankStatus &r) {
  std::string text = r.pulse.step >= 0 ? fmt::format(" after step {}", r.pulse.step) : "";
  if (!r.pulse.doing.empty() && r.pulse.doing != "a step")
    text += fmt::format("{} {}", text.empty() ? " while" : ", in", r.pulse.doing);
  if (const uint64_t number = r.pulse.place >> 32; number > 0)
    text += r.pulse.state == PulseView::State::collective ? fmt::format(" (its collective {})", number)
                                                          : fmt::format(", {} collectives done", number);
  return text;
}

bool writeAll(int fd, llvm::StringRef text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return false;
    text = text.drop_front(size_t(n));
  }
  return true;
}

std::future<int> writeAside(int fd, std::string text) {
  std::packaged_task<int()> writing([fd, text = std::move(text)] { return writeAll(fd, text) ? 0 : errno; });
  std::future<int> written = writing.get_future();
  std::thread(std::move(writing)).detach();
  return written;
}

namespace {

/// An environment for execve: later entries replace earlier ones of the same name.
class EnvironmentBlock {
public:
  EnvironmentBlock() {
    for (char **e = environ; *e; ++e)
      entries.push_back(*e);
  }
  void set(const std::string &entry) {
    const std::string name = entry.substr(0, entry.find('=') + 1);
    std::erase_if(entries, [&](const std::string &e) { return e.rfind(name, 0) == 0; });
    entries.push_back(entry);
  }
  char **block() {
    pointers.clear();
    for (std::string &e : entries)
      pointers.push_back(e.data());
    pointers.push_back(nullptr);
    return pointers.data();
  }

private:
  std::vector<std::string> entries;
  std::vector<char *> pointers;
};

/// A process and this side's ends of its pipes.
struct Member {
  Member(int rank, const std::string &log) : lines(rank, log) {}
  pid_t pid = 0;
  PulseReader pulse;
  RankLines lines;
  int out = -1, err = -1;  // -1: closed or never opened
  int end = -1;            // readable once the process has ended, which may be after its pipes have closed
};

class LocalCrew : public Crew {
public:
  LocalCrew(const CrewPlan &plan, const Voice &voice) : voice(voice) {
    if (!plan.outDir.empty())
      makeDirs(plan.outDir + "/ranks");
    const auto shares = shareCpus(orderedCpus(), plan.ranks);
    const std::string host = hostName();
    for (int i = 0; i < plan.ranks; ++i) {
      const int rank = plan.first() + i;
      const bool hasLog = rank != 0 && !plan.outDir.empty();
      members.push_back(std::make_unique<Member>(rank, hasLog ? plan.outDir + "/" + rankLogName(rank) : std::string()));
      try {
        start(plan, i, shares[i], *members.back());
      } catch (...) {
        signal(SIGKILL);
        reapAll();
        throw;
      }
      ranks.push_back({rank, host, members.back()->pid, {}, {}});
    }
  }

  ~LocalCrew() override {
    signal(SIGKILL);
    reapAll();
    for (auto &m : members)
      for (int fd : {m->out, m->err, m->end})
        if (fd >= 0)
          ::close(fd);
  }

  void addDescriptors(std::vector<int> &fds) const override {
    for (const auto &m : members)
      for (int fd : {m->out, m->err, m->end})
        if (fd >= 0)
          fds.push_back(fd);
  }

  void update() override {
    for (size_t i = 0; i < members.size(); ++i) {
      Member &m = *members[i];
      RankStatus &r = ranks[i];
      r.pulse = m.pulse.read();
      // Checked before its pipes are read, because they already contain all that a dead process wrote.
      int status = 0;
      const bool ended = !r.end && ::waitpid(m.pid, &status, WNOHANG) == m.pid;
      readPipe(m, m.out, r.rank == 0);
      readPipe(m, m.err, r.rank == 0);
      if (!ended)
        continue;
      // Children of the rank may hold the pipes open; do not wait for them.
      if (const std::string rest = m.lines.finish(); r.rank == 0 && !rest.empty())
        voice.err(rest);
      for (int *fd : {&m.out, &m.err, &m.end})
        if (*fd >= 0)
          ::close(std::exchange(*fd, -1));
      ::kill(-m.pid, SIGKILL);
      r.pulse = m.pulse.read();
      r.end = RankEnd{WIFEXITED(status) ? WEXITSTATUS(status) : 0, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                      m.lines.error(), r.rank == 0 ? "" : m.lines.unlogged()};
    }
  }

  void signal(int number, std::optional<int> rank) override {
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i]->pid > 0 && (i >= ranks.size() || (!ranks[i].end && (!rank || *rank == ranks[i].rank))))
        ::kill(number == SIGKILL ? -members[i]->pid : members[i]->pid, number);
  }
  void signal(int number) { signal(number, std::nullopt); }

  bool done() const override {
    return std::all_of(ranks.begin(), ranks.end(), [](const RankStatus &r) { return r.end.has_value(); });
  }

private:
  const Voice voice;
  std::vector<std::unique_ptr<Member>> members;

  void reapAll() {
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i]->pid > 0 && (i >= ranks.size() || !ranks[i].end))
        ::waitpid(members[i]->pid, nullptr, 0);
  }

  void readPipe(Member &m, int &fd, bool aloud) {
    std::array<char, 1 << 16> bytes;
    while (fd >= 0) {
      const ssize_t n = ::read(fd, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR)
        continue;
      if (n < 0 && errno == EAGAIN)
        return;
      if (n <= 0) {
        ::close(std::exchange(fd, -1));
        return;
      }
      const llvm::StringRef text(bytes.data(), size_t(n));
      if (&fd == &m.out && aloud)
        voice.out(text);  // immediately, even an incomplete line
      else if (const std::string plain = m.lines.take(text); aloud && !plain.empty())
        voice.err(plain);
      if (size_t(n) < bytes.size())
        return;
    }
  }

  void start(const CrewPlan &plan, int local, const std::vector<int> &cpus, Member &m) {
    const int rank = plan.first() + local;
    EnvironmentBlock env;
    for (const std::string &e : plan.environment)
      env.set(e);
    env.set(fmt::format("GPTC_RANK={}", rank));
    env.set(fmt::format("GPTC_WORLD={}", plan.world));
    env.set(fmt::format("GPTC_LOCAL_RANK={}", local));
    env.set(fmt::format("GPTC_LOCAL_WORLD={}", plan.ranks));
    env.set("GPTC_RENDEZVOUS=" + plan.rendezvous);
    env.set("GPTC_TOKEN=" + plan.token);
    env.set(fmt::format("GPTC_PULSE={}", m.pulse.fd()));
    env.set(fmt::format("GPTC_RESTARTS={}", plan.restarts));
    if (plan.resumeAtMost >= 0)
      env.set(fmt::format("GPTC_RESUME_AT_MOST={}", plan.resumeAtMost));
    const bool reads = rank == 0 && voice.input >= 0;
    if (reads)
      env.set(fmt::format("GPTC_INPUT={}", STDIN_FILENO));
    std::vector<std::string> words = plan.command;
    std::vector<char *> argv;
    for (std::string &w : words)
      argv.push_back(w.data());
    argv.push_back(nullptr);
    char **envp = env.block();
    const cpu_set_t set = setOf(cpus);

    auto pipe = [] { return Pipe("a rank", "raise `ulimit -n`, or start fewer ranks"); };
    Pipe out = pipe(), err = pipe(), failed = pipe();
    const bool ownOut = rank == 0 && voice.direct >= 0, oneFile = rank != 0;
    const pid_t parent = ::getpid();
    m.pid = ::fork();
    if (m.pid == 0) {
      // Only async-signal-safe calls between fork and exec.
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent)
        ::_exit(127);  // the parent died before PR_SET_PDEATHSIG took effect
      sigset_t none;
      sigemptyset(&none);
      ::sigprocmask(SIG_SETMASK, &none, nullptr);
      restoreSignals();
      ::signal(SIGTTOU, SIG_IGN);  // its group is not the terminal's foreground group, but it writes there
      if (!cpus.empty())
        ::sched_setaffinity(0, sizeof set, &set);
      const int input = reads ? voice.input : ::open("/dev/null", O_RDONLY);
      ::dup2(input, STDIN_FILENO);
      if (!reads && input > 0)
        ::close(input);
      if (!ownOut)
        ::dup2(out.write, 1);
      else if (voice.direct != 1)
        ::dup2(voice.direct, 1);
      ::dup2(oneFile ? out.write : err.write, 2);
      ::fcntl(m.pulse.fd(), F_SETFD, 0);
      if (plan.folder.empty() || ::chdir(plan.folder.c_str()) == 0)
        ::execve(argv[0], argv.data(), envp);
      const int why = errno;
      (void)!::write(failed.write, &why, sizeof why);
      ::_exit(127);
    }
    if (m.pid < 0) {
      m.pid = 0;
      throw UserError(ErrorCode::OutOfMemory, fmt::format("the system starts no more processes: {}", strerror(errno)),
                      "start fewer ranks, or raise `ulimit -u`");
    }
    ::setpgid(m.pid, m.pid);  // here too, because a signal may come before the child has done it
    ::close(std::exchange(failed.write, -1));
    int why = 0;
    if (::read(failed.read, &why, sizeof why) == sizeof why)
      throw UserError(ErrorCode::RankFailed,
                      fmt::format("rank {} on {} cannot be started: {} in {}: {}", rank, hostName(), argv[0],
                                  plan.folder, strerror(why)),
                      "the program and the current folder must be there on every machine");
    m.end = int(::syscall(SYS_pidfd_open, m.pid, 0));
    for (Pipe *p : {&out, &err})
      ::fcntl(p->read, F_SETFL, O_NONBLOCK);
    if (!ownOut)
      m.out = std::exchange(out.read, -1);
    if (!oneFile)
      m.err = std::exchange(err.read, -1);
  }
};

}  // namespace

std::unique_ptr<Crew> startCrewHere(const CrewPlan &plan, const Voice &voice) {
  return std::make_unique<LocalCrew>(plan, voice);
}

}  // namespace gptc
