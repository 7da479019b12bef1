#include "runtime/launch/remote_crew.h"

#include "runtime/launch/child_process.h"
#include "runtime/launch/pulse_json.h"
#include "support/diagnostics.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gptc {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr auto kBetweenLines = std::chrono::milliseconds(250);
constexpr size_t kLongestMessage = 1 << 20;

std::string text(const json &j) { return j.dump(-1, ' ', false, json::error_handler_t::replace) + "\n"; }

/// Reads lines from a non-blocking descriptor.
class LineReader {
public:
  explicit LineReader(int fd) : fd(fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }
  /// Calls `line` with each complete line; false at the end of input, or if a line exceeds any message.
  template <class F> bool read(F line) {
    std::array<char, 1 << 16> bytes;
    for (;;) {
      const ssize_t n = ::read(fd, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR)
        continue;
      if (n < 0 && errno == EAGAIN)
        return true;
      if (n <= 0)
        return false;
      rest.append(bytes.data(), size_t(n));
      size_t begin = 0;
      for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1)
        line(rest.substr(begin, end - begin));
      rest.erase(0, begin);
      if (rest.size() > kLongestMessage)
        return false;
    }
  }

private:
  const int fd;
  std::string rest;
};

// ---- here -----------------------------------------------------------------------------------------------------------

class RemoteCrew : public Crew {
public:
  RemoteCrew(const std::string &host, const CrewPlan &plan, const Voice &voice, const RemoteOptions &options)
      : host(host), voice(voice), options(options) {
    for (int i = 0; i < plan.ranks; ++i)
      ranks.push_back({plan.first() + i, host, 0, {}, {}, kBetweenLines + std::chrono::milliseconds(100)});
    start();
    reader.emplace(out);
    ::fcntl(err, F_SETFL, O_NONBLOCK);
    heard = told = Clock::now();
    json first = parseJson(plan.json());
    first["silenceMs"] = options.silence.count();
    send(first);
  }

  ~RemoteCrew() override {
    if (in >= 0)
      ::close(in);  // the agent then ends its ranks
    if (ssh > 0) {
      for (int i = 0; i < 100 && ::waitpid(ssh, nullptr, WNOHANG) == 0; ++i)
        ::usleep(10'000);
      ::kill(-ssh, SIGKILL);
      ::waitpid(ssh, nullptr, 0);
    }
    ::close(out);
    ::close(err);
  }

  void addDescriptors(std::vector<int> &fds) const override {
    if (!closed)
      fds.push_back(out);
  }

  void update() override {
    if (closed)
      return;
    greet();
    const Clock::time_point now = Clock::now();
    readErrors();
    const bool open = reader->read([&](const std::string &line) {
      take(line);
      heard = Clock::now();  // the reader of what it prints may have paused
    });
    if (!open) {
      closed = true;
      int status = 0;
      ::waitpid(ssh, &status, 0);
      ssh = 0;
      readErrors();
      if (!done())
        why = fmt::format("the connection to {} has ended{}", host, said.empty() ? "" : ": " + said);
    } else if (now - heard > options.silence && why.empty()) {
      why = fmt::format("nothing was heard from {} for {:.1f} s{}", host, options.silence.count() / 1e3,
                        said.empty() ? "" : ": " + said);
    }
  }

  void greet() override {
    const Clock::time_point now = Clock::now();
    if (now - told <= std::min(options.silence / 4, kBetweenLines * 4))
      return;
    send(json::object());
    told = now;
  }

  void signal(int number, std::optional<int> rank) override {
    send({{"signal", number}, {"rank", rank ? json(*rank) : json()}});
    if (number == SIGKILL && !why.empty() && ssh > 0)
      ::kill(-ssh, SIGKILL);
  }

  bool done() const override {
    return std::all_of(ranks.begin(), ranks.end(), [](const RankStatus &r) { return r.end.has_value(); });
  }
  std::string lost() const override { return why; }

private:
  const std::string host;
  const Voice voice;
  const RemoteOptions options;
  pid_t ssh = 0;
  int in = -1, out = -1, err = -1;
  std::optional<LineReader> reader;
  Clock::time_point heard, told;
  bool closed = false;
  std::string said;  // the beginning of ssh's own output
  std::string why;

  void start() {
    auto pipe = [] { return Pipe("ssh", "raise `ulimit -n`"); };
    Pipe input = pipe(), output = pipe(), errors = pipe();
    std::string command = "exec";
    for (const std::string &word : options.agent)
      command += " " + shellQuoted(word);
    std::vector<std::string> words = {"ssh",
                                      "-o",
                                      "BatchMode=yes",
                                      "-o",
                                      "ConnectTimeout=10",
                                      "-o",
                                      "ServerAliveInterval=5",
                                      "-o",
                                      "ServerAliveCountMax=3",
                                      "-T",
                                      "--",
                                      host,
                                      command};
    std::vector<char *> argv;
    for (std::string &w : words)
      argv.push_back(w.data());
    argv.push_back(nullptr);
    ssh = ::fork();
    if (ssh == 0) {
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      ::dup2(input.read, 0);
      ::dup2(output.write, 1);
      ::dup2(errors.write, 2);
      restoreSignals();
      ::execvp(argv[0], argv.data());
      const char text[] = "there is no program ssh\n";
      (void)!::write(2, text, sizeof text - 1);
      ::_exit(127);
    }
    if (ssh < 0)
      throw UserError(ErrorCode::OutOfMemory, fmt::format("the system starts no more processes: {}", strerror(errno)),
                      "raise `ulimit -u`");
    ::setpgid(ssh, ssh);
    in = std::exchange(input.write, -1);
    out = std::exchange(output.read, -1);
    err = std::exchange(errors.read, -1);
  }

  void send(const json &j) {
    // A broken connection is noticed when it is read.
    if (!closed)
      writeAll(in, text(j));
  }

  void readErrors() {
    std::array<char, 4096> bytes;
    for (ssize_t n; (n = ::read(err, bytes.data(), bytes.size())) > 0;)
      for (char c : llvm::StringRef(bytes.data(), size_t(n)))
        if (said.size() < 500 && (c != '\r') && (c != '\n' || !said.empty()))
          said += c == '\n' ? ' ' : c;
    while (!said.empty() && said.back() == ' ')
      said.pop_back();
  }

  void take(const std::string &line) {
    const json j = parseJsonOrDiscard(line);
    if (!j.is_object()) {
      said += (said.empty() ? "" : " ") + line.substr(0, 200);  // perhaps a shell's greeting
      return;
    }
    try {
      if (j.contains("out"))
        voice.out(j["out"].get<std::string>());
      if (j.contains("err"))
        voice.err(j["err"].get<std::string>());
      if (j.contains("refused"))
        why = fmt::format("{}: {}", host, j["refused"].get<std::string>());
      if (!j.contains("rank"))
        return;
      const int at = j["rank"].get<int>() - ranks.front().rank;
      if (at < 0 || at >= int(ranks.size()))
        return;
      RankStatus &r = ranks[at];
      j.at("pid").get_to(r.pid);
      r.pulse = pulseOf(j.at("pulse"));
      if (j.contains("end"))
        r.end = RankEnd{j["end"].at("code").get<int>(), j["end"].at("signal").get<int>(),
                        j["end"].at("error").get<std::string>(), j["end"].at("said").get<std::string>()};
    } catch (const json::exception &e) {
      why = fmt::format("{} does not speak as this version does: {}", host, e.what());
    }
  }
};

}  // namespace

std::unique_ptr<Crew> startCrewAt(const std::string &host, const CrewPlan &plan, const Voice &voice,
                                  const RemoteOptions &options) {
  return std::make_unique<RemoteCrew>(host, plan, voice, options);
}

// ---- there ----------------------------------------------------------------------------------------------------------

int runAgent(int in, int out) {
  ::signal(SIGPIPE, SIG_IGN);
  LineReader reader(in);
  std::optional<std::string> first;
  std::vector<json> commands;
  Clock::time_point heard = Clock::now();
  auto listen = [&](std::chrono::milliseconds most, std::vector<int> fds) {
    std::vector<pollfd> polled;
    fds.push_back(in);
    for (int fd : fds)
      polled.push_back({fd, POLLIN, 0});
    ::poll(polled.data(), polled.size(), int(most.count()));
    return reader.read([&](const std::string &line) {
      heard = Clock::now();
      if (!first)
        first = line;
      else if (json j = parseJsonOrDiscard(line); j.is_object())
        commands.push_back(j);
    });
  };
  auto tell = [&](const json &j) { return writeAll(out, text(j)); };

  while (!first)
    if (!listen(std::chrono::seconds(1), {}))
      return exitCodeOf(ErrorCode::RankFailed);
  const std::optional<CrewPlan> plan = CrewPlan::parse(*first);
  if (!plan) {
    tell({{"refused", "gptrun there is of another version"}});
    return exitCodeOf(ErrorCode::Usage);
  }
  const std::chrono::milliseconds silence(parseJson(*first).value("silenceMs", 15000));
  std::unique_ptr<Crew> crew;
  try {
    crew = startCrewHere(*plan, {-1, [&](llvm::StringRef s) { tell({{"out", s.str()}}); },
                                 [&](llvm::StringRef s) { tell({{"err", s.str()}}); }});
  } catch (const UserError &e) {
    tell({{"refused", e.diagnostics[0].message}});
    return e.exitCode();
  }
  std::vector<bool> toldEnd(crew->ranks.size());
  Clock::time_point told{};
  for (;;) {
    std::vector<int> fds;
    crew->addDescriptors(fds);
    const bool open = listen(std::chrono::milliseconds(50), fds);
    // Seen before it speaks: where the reader of the output pauses, that may take as long.
    const bool isAlone = !open || Clock::now() - heard > silence;
    for (const json &j : std::exchange(commands, {}))
      if (j.contains("signal") && j["signal"].is_number_integer())
        crew->signal(j["signal"], j.contains("rank") && j["rank"].is_number_integer() ? std::optional<int>(j["rank"])
                                                                                      : std::nullopt);
    crew->update();
    bool heardBy = true;
    const bool due = Clock::now() - told > kBetweenLines;
    for (size_t i = 0; i < crew->ranks.size(); ++i) {
      const RankStatus &r = crew->ranks[i];
      if (toldEnd[i] || (!due && !r.end))
        continue;
      json j = {{"rank", r.rank}, {"pid", r.pid}, {"pulse", pulseJson(r.pulse)}};
      if (r.end)
        j["end"] = {{"code", r.end->code}, {"signal", r.end->signal}, {"error", r.end->error}, {"said", r.end->said}};
      heardBy = tell(j) && heardBy;
      toldEnd[i] = r.end.has_value();
    }
    if (due)
      told = Clock::now();
    if (crew->done())
      return 0;
    if (isAlone || !heardBy)
      return exitCodeOf(ErrorCode::RankFailed);  // destroying the crew ends its ranks
  }
}

std::string shellQuoted(llvm::StringRef word) {
  std::string quoted = "'";
  for (char c : word)
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

}  // namespace gptc
