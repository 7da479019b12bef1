#include "tools/study/experiment_runner.h"

#include "frontends/toml_config.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/plan/plan.h"
#include "runtime/train/metrics.h"
#include "runtime/train/run_folder.h"
#include "support/diagnostics.h"
#include "support/files.h"
#include "tools/planner/cache_dir.h"
#include "tools/planner/plan_module.h"

#include "llvm/ADT/StringRef.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <optional>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gptc {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// How a program ended, and what it printed.
struct End {
  int code = 0;  // 128 + the number of a signal
  bool isStopped = false, isOutOfTime = false;
  double seconds = 0;
  std::string output;
};

/// Starts programs and waits for them. While it lives, SIGINT, SIGTERM and SIGHUP are passed on to the program that
/// runs, and noted.
class Children {
public:
  Children() {
    struct sigaction usual{};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &usual, nullptr);  // ignored, children would leave no status
    sigemptyset(&awaited);
    for (int number : {SIGINT, SIGTERM, SIGCHLD})
      sigaddset(&awaited, number);
    struct sigaction closed{};
    ::sigaction(SIGHUP, nullptr, &closed);
    if (closed.sa_handler != SIG_IGN)  // nohup stays in force
      sigaddset(&awaited, SIGHUP);
    ::pthread_sigmask(SIG_BLOCK, &awaited, &before);
  }
  ~Children() {
    while (note(0)) {  // what came last must not end the process now
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  Children(const Children &) = delete;

  /// The first signal that asked to stop; 0 if none did.
  int stopSignal() {
    note(0);
    return stop;
  }

  /// Waits. False, at once, if a signal asks or has asked to stop.
  bool pause(double seconds) { return !stop && !note(seconds); }

  /// Runs a program with its output at the end of a file. Seconds count from when `begun` grows, if one is named:
  /// after `limit` of them it gets one SIGINT. `progress` is told how many they are about once in each.
  End run(std::vector<std::string> words, const std::string &log, const std::string &begun = "",
          double limit = INFINITY, const std::function<void(double)> &progress = {}) {
    const int out = openAppending(log);
    const off_t begin = ::lseek(out, 0, SEEK_END);
    uintmax_t size = sizeOf(begun);  // gptrun first cuts off what is beyond its checkpoint
    bool counts = begun.empty();
    auto started = Clock::now(), told = started;
    const pid_t child = start(words, out);
    ::close(out);
    End end;
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      // The most that it waits: the child's end wakes it.
      double wait = counts ? 1 : 0.05;
      if (counts && !end.isOutOfTime && std::isfinite(limit))
        wait = std::clamp(limit - secondsSince(started), 0.0, 1.0);
      if (const int number = note(wait)) {
        end.isStopped = true;
        ::kill(child, number);
      }
      if (const uintmax_t now = counts ? size : sizeOf(begun); now > size) {
        counts = true;
        started = Clock::now();
      } else {
        size = now;
      }
      if (counts && progress && secondsSince(told) >= 1) {
        told = Clock::now();
        progress(secondsSince(started));
      }
      if (counts && !end.isOutOfTime && secondsSince(started) >= limit) {
        end.isOutOfTime = true;
        ::kill(child, SIGINT);
      }
    }
    end.seconds = counts ? secondsSince(started) : 0;
    end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (InputFile file(log, "log"); begin >= 0 && file.size() > size_t(begin)) {
      end.output.resize(std::min(file.size() - size_t(begin), size_t(64) << 20));
      if (!file.read(size_t(begin), end.output.data(), end.output.size()))
        end.output.clear();
    }
    return end;
  }

private:
  sigset_t awaited, before;
  int stop = 0;

  /// Bytes of a file; 0 if there is none.
  static uintmax_t sizeOf(const std::string &file) {
    std::error_code none;
    const uintmax_t size = fs::file_size(file, none);
    return none ? 0 : size;
  }

  /// Waits for a signal. The number of one that asks to stop; 0 for none and for a child's end.
  int note(double seconds) {
    timespec t{};
    t.tv_sec = time_t(seconds);
    t.tv_nsec = long(1e9 * (seconds - double(t.tv_sec)));
    const int number = ::sigtimedwait(&awaited, nullptr, &t);
    if (number <= 0 || number == SIGCHLD)
      return 0;
    if (!stop)
      stop = number;
    return number;
  }

  static pid_t start(std::vector<std::string> &words, int out) {
    std::vector<char *> argv;
    for (std::string &w : words)
      argv.push_back(w.data());
    argv.push_back(nullptr);
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child < 0)
      throw UserError(ErrorCode::OutOfMemory, fmt::format("the system starts no more processes: {}", strerror(errno)),
                      "raise `ulimit -u`");
    if (child > 0) {
      ::setpgid(child, child);
      return child;
    }
    // Only async-signal-safe calls between fork and exec. A group of its own: else Ctrl-C in a terminal would reach it
    // twice, and end it at once.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent)
      ::_exit(127);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    for (int number : {SIGINT, SIGTERM})
      ::signal(number, SIG_DFL);
    const int input = ::open("/dev/null", O_RDONLY);
    ::dup2(input, STDIN_FILENO);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
};

RunError errorOf(const UserError &e) { return {codeName(e.diagnostics[0].code), e.diagnostics[0].message}; }

std::string programBeside(const char *name) { return fs::read_symlink("/proc/self/exe").parent_path() / name; }

/// Of a run whose model is not valid: whoever mends that changes the text, or what is said of it.
std::string fingerprintOf(const Experiment &e, const ExperimentRun &run, const UserError &problem) {
  return blake3(fmt::format("{}\n{}\n{}\n{}", e.budget.str(), fmt::join(run.settings, "\n"), problem.what(),
                            readTextFile(e.model, kConfigLimit).text));
}

/// What decides over a run.
std::string fingerprintOf(const Config &config, const Budget &budget) {
  std::string text = budget.str() + "\n";
  for (const auto &[key, value] : config.written)
    if (key != "name" && key != "out_dir" && key != "extends")
      text += fmt::format("{}={}\n", key, value.text());
  return blake3(text);
}

/// DIR/NAME/run.json.
struct RunState {
  std::string fingerprint;
  double seconds = 0;  // of gptrun so far, while it runs about to the last one

  static std::optional<RunState> read(const std::string &file) {
    const FileText text = readTextFile(file, kConfigLimit);
    const nlohmann::json j = parseJsonOrDiscard(text.text);
    if (!part(j, "fingerprint").is_string() || !part(j, "seconds").is_number())
      return std::nullopt;
    return RunState{j["fingerprint"], j["seconds"]};
  }
  void write(const std::string &file) const {
    writeFileAtomically(
        file, nlohmann::ordered_json{{"schema", 1}, {"fingerprint", fingerprint}, {"seconds", seconds}}.dump(1) + "\n");
  }
  /// Writes it with more seconds, so that they count if this process is killed. A disk that is full is gptrun's to
  /// report.
  void note(double more, const std::string &file) const {
    try {
      RunState{fingerprint, seconds + more}.write(file);
    } catch (const UserError &) {
    }
  }
};

class Runner {
public:
  explicit Runner(const ExperimentRequest &request)
      : request(request), gptc(programBeside("gptc")), gptrun(programBeside("gptrun")) {}

  ExperimentReport go() {
    enterFolders();
    const RunLock lock(request.dir);
    results = readResults(resultsFile());
    prepare();
    ExperimentReport report;
    const auto &runs = request.experiment.runs;
    for (size_t i = 0; i < runs.size(); ++i) {
      if (hasEnded(i))
        continue;
      if ((report.signal = children.stopSignal()))
        break;
      request.say(fmt::format("{}/{}  {}", i + 1, runs.size(), runs[i].name));
      const std::optional<RunResult> result = doRun(i);
      if (!result) {
        if ((report.signal = children.stopSignal()))
          break;
        request.say(fmt::format("      {} was stopped, but not by this command", runs[i].name));
        continue;
      }
      record(*result);
      request.say(inWords(*result));
      if (result->failed && request.stopOnFailure)
        break;
    }
    for (const ExperimentRun &run : runs)
      if (const RunResult *r = resultOf(run.name); r)
        report.results.push_back(*r);
      else
        ++report.left;
    return report;
  }

private:
  const ExperimentRequest &request;
  const std::string gptc, gptrun;
  Children children;
  std::vector<RunResult> results;  // of the folder, also those of runs that the experiment has no more
  struct Prepared {
    std::optional<Config> config;
    std::optional<RunError> error;
    int exit = 0;
    std::string fingerprint;
  };
  std::vector<Prepared> prepared;

  std::string resultsFile() const { return request.dir + "/" + kResultsFile; }
  std::string folderOf(const ExperimentRun &run) const { return request.dir + "/" + run.name; }
  std::string stateOf(const ExperimentRun &run) const { return folderOf(run) + "/run.json"; }

  void enterFolders() {
    // Programs that are started elsewhere must find the same cache.
    if (const std::string cache = defaultCacheDir(); !cache.empty())
      ::setenv("GPTC_CACHE", absolutePath(cache).c_str(), 1);
    std::error_code e;
    const bool known = fs::exists(request.dir + "/" + kExperimentFile, e);
    bool foreign = fs::exists(request.dir, e) && !fs::is_directory(request.dir, e);
    // A call that was refused leaves its lock.
    for (fs::directory_iterator it(request.dir, e), end; !e && !known && it != end; it.increment(e))
      foreign |= it->path() != RunLock::pathIn(request.dir);
    if (foreign)
      throw UserError(ErrorCode::Unwritable, fmt::format("{} is there, and holds no experiment", request.dir),
                      "name a new or empty folder by --out");
    const std::string folder = fs::path(absolutePath(request.experiment.file)).parent_path();
    if (::chdir(folder.c_str()) != 0)
      throw UserError(ErrorCode::FileMissing, fmt::format("cannot enter {}: {}", folder, strerror(errno)));
  }

  RunResult *resultOf(const std::string &name) {
    const auto it = std::find_if(results.begin(), results.end(), [&](const RunResult &r) { return r.name == name; });
    return it == results.end() ? nullptr : &*it;
  }

  /// Reads every model, and compares with what earlier calls have done.
  void prepare() {
    const Experiment &e = request.experiment;
    std::exception_ptr first;
    size_t valid = 0;
    for (const ExperimentRun &run : e.runs) {
      Prepared p;
      try {
        p.config = readConfig(e.model, run.settings);
        p.fingerprint = fingerprintOf(*p.config, e.budget);
        ++valid;
      } catch (const UserError &problem) {
        if (!first)
          first = std::current_exception();
        p.error = errorOf(problem);
        p.fingerprint = fingerprintOf(e, run, problem);
        p.exit = problem.exitCode();
      }
      prepared.push_back(std::move(p));
    }
    if (!valid)
      std::rethrow_exception(first);
    std::vector<std::string> changed;
    for (size_t i = 0; i < e.runs.size(); ++i) {
      const auto state = RunState::read(stateOf(e.runs[i]));
      if (state && state->fingerprint != prepared[i].fingerprint && !mayChange(i))
        changed.push_back(e.runs[i].name);
    }
    if (!changed.empty())
      throw UserError(ErrorCode::Contradiction,
                      fmt::format("{} in {} {} made by other settings, another model file or another budget",
                                  fmt::join(changed, ", "), request.dir, changed.size() == 1 ? "was" : "were"),
                      "give changed runs other names, or the experiment another --out");
    const std::string file = request.dir + "/" + kExperimentFile;
    const nlohmann::json old = parseJsonOrDiscard(readTextFile(file, kConfigLimit).text);
    if (part(old, "hash").is_string() && old["hash"] != e.hash)
      request.say(fmt::format("{} has changed since: only runs with new names are done", e.file));
    writeFileAtomically(
        file,
        nlohmann::ordered_json{{"schema", 1}, {"file", absolutePath(fs::path(e.file).filename())}, {"hash", e.hash}}
                .dump(1) +
            "\n");
  }

  /// Whether a run of this name may be corrected: it has failed, or was stopped before its first step.
  bool mayChange(size_t i) {
    const ExperimentRun &run = request.experiment.runs[i];
    if (const RunResult *r = resultOf(run.name))
      return r->failed;
    return CheckpointStore(folderOf(run)).steps().empty() && readLoggedSteps(folderOf(run)).empty();
  }

  bool hasEnded(size_t i) {
    const RunResult *r = resultOf(request.experiment.runs[i].name);
    return r && (!r->failed || (!request.retryFailed && r->fingerprint == prepared[i].fingerprint));
  }

  RunResult resultFor(size_t i) const {
    const ExperimentRun &run = request.experiment.runs[i];
    RunResult r;
    r.fingerprint = prepared[i].fingerprint;
    r.name = run.name, r.variant = run.variant, r.seed = run.seed, r.settings = run.settings;
    r.budget = request.experiment.budget.str();
    return r;
  }

  static RunResult failedBy(RunResult r, int code, RunError error) {
    r.failed = true;
    r.exit = code;
    r.error = std::move(error);
    return r;
  }

  static RunResult failedBy(RunResult r, const End &end) {
    const std::optional<RunError> error = errorIn(end.output);
    if (isOfFolder(error))
      throw UserError(ErrorCode::Unwritable, fmt::format("{}: {}", r.name, error->message),
                      "mend that; then the same command goes on");
    return failedBy(std::move(r), end.code,
                    error.value_or(RunError{"", end.code > 128 ? fmt::format("ended by signal {} ({})", end.code - 128,
                                                                             strsignal(end.code - 128))
                                                               : fmt::format("ended with exit code {}", end.code)}));
  }

  /// Whether an error says nothing of a run, but that its folder cannot be written now.
  static bool isOfFolder(const std::optional<RunError> &error) {
    return error && error->code == codeName(ErrorCode::Unwritable);
  }

  /// Waits while a process writes in a run's folder: a gptrun lives on for a while if what started it was killed. False
  /// if a signal asked to stop.
  bool awaitFolder(const ExperimentRun &run) {
    for (bool isSaid = false; RunLock::isHeld(folderOf(run)); isSaid = true) {
      if (!isSaid)
        request.say(fmt::format("      waiting for an earlier gptrun, which still writes in {}", folderOf(run)));
      if (!children.pause(0.2))
        return false;
    }
    return true;
  }

  std::vector<std::string> withThreads(std::vector<std::string> words) const {
    if (request.threads)
      words.insert(words.end(), {"--threads", std::to_string(request.threads)});
    return words;
  }

  /// Trains for at most `seconds`. nullopt if a signal came before it began.
  std::optional<End> startTraining(const ExperimentRun &run, const std::string &plan, const RunState &state,
                                   double seconds) {
    const std::string folder = folderOf(run);
    const std::vector<std::string> words = withThreads({gptrun, plan, "--out-dir", folder});
    auto start = [&] {
      return children.run(words, folder + "/run.log", folder + "/log.jsonl", seconds,
                          [&](double more) { state.note(more, stateOf(run)); });
    };
    End end = start();
    if (end.code == 0 || end.isStopped || !isOfFolder(errorIn(end.output)))
      return end;
    // Another run may have taken the folder since it was found free.
    return awaitFolder(run) ? std::optional(start()) : std::nullopt;
  }

  /// Compiles a run's plan. nullopt if it was stopped.
  std::optional<End> compile(const ExperimentRun &run, const std::string &plan, int64_t steps) {
    std::vector<std::string> words = {gptc, "compile", request.experiment.model, "-o", plan};
    for (const std::string &s : run.settings)
      words.insert(words.end(), {"--set", s});
    if (steps > 0)
      words.insert(words.end(), {"--set", fmt::format("train.steps={}", steps)});
    End end = children.run(words, folderOf(run) + "/compile.log");
    return end.isStopped ? std::nullopt : std::optional(std::move(end));
  }

  /// The result of a run; nullopt if it was stopped and has not ended.
  std::optional<RunResult> doRun(size_t i) {
    const ExperimentRun &run = request.experiment.runs[i];
    const Budget &budget = request.experiment.budget;
    const std::string folder = folderOf(run), plan = folder + "/plan";
    RunResult result = resultFor(i);
    if (prepared[i].error)
      return failedBy(result, prepared[i].exit, *prepared[i].error);
    makeDirs(folder);
    if (!awaitFolder(run))
      return std::nullopt;
    auto state = RunState::read(stateOf(run));
    if (!state || state->fingerprint != prepared[i].fingerprint) {
      removeTree(plan);
      if (const std::string old = setAside(folder); !old.empty())
        request.say(fmt::format("      what it wrote before it was changed is in {}", old));
      state = RunState{prepared[i].fingerprint, 0};
      state->write(stateOf(run));
    }
    if (!isPlanFolder(plan)) {
      int64_t steps = 0;
      if (budget.kind == Budget::Kind::steps)
        steps = budget.stepsFor(1);
      else if (budget.kind == Budget::Kind::tokens)
        steps = budget.stepsFor(double(prepared[i].config->train.globalBatchTokens));
      else if (budget.kind == Budget::Kind::flops) {
        const std::string other = folder + "/plan-of-flops";  // tells what a step takes
        const std::optional<End> end = compile(run, other, 0);
        if (!end || end->code != 0)
          return end ? std::optional(failedBy(result, *end)) : std::nullopt;
        steps = budget.stepsFor(flopsPerToken(*loadPlan(other).planned) *
                                double(prepared[i].config->train.globalBatchTokens));
        removeTree(other);
      }
      const std::optional<End> end = compile(run, plan, steps);
      if (!end || end->code != 0)
        return end ? std::optional(failedBy(result, *end)) : std::nullopt;
    }
    return train(run, plan, *state, prepared[i].config->train.globalBatchTokens, std::move(result));
  }

  std::optional<RunResult> train(const ExperimentRun &run, const std::string &plan, RunState state, int64_t batch,
                                 RunResult result) {
    const std::string folder = folderOf(run);
    Plan loaded;
    try {
      loaded = loadPlan(plan);
    } catch (const UserError &e) {
      removeTree(plan);  // --retry-failed compiles it again
      return failedBy(std::move(result), e.exitCode(), errorOf(e));
    }
    const bool timed = request.experiment.budget.kind == Budget::Kind::seconds;
    const double left = timed ? request.experiment.budget.amount - state.seconds : INFINITY;
    End end;
    if (left > 0) {
      std::optional<End> training = startTraining(run, plan, state, left);
      if (!training)
        return std::nullopt;
      end = std::move(*training);
      state.seconds += end.seconds;
      state.write(stateOf(run));
    }
    addLog(folder, result);
    for (int64_t step : CheckpointStore(folder).steps())
      result.steps = std::max(result.steps, step);
    result.tokens = result.steps * batch;
    result.seconds = state.seconds;
    const bool whole = result.steps >= loaded.run.steps;
    const bool timeIsUp = timed && (left <= 0 || end.isOutOfTime);
    if (end.code == 0 && whole)
      return result;
    if (end.isStopped)
      return std::nullopt;
    if (timeIsUp && result.steps == 0)
      return failedBy(
          result, end.code,
          {codeName(ErrorCode::OutOfRange),
           fmt::format("no step was saved within the {:g} seconds of the budget", request.experiment.budget.amount)});
    if (end.code != 0)
      return failedBy(result, end);
    if (!timeIsUp)  // somebody else has stopped gptrun in good order
      return std::nullopt;
    return loaded.run.valData.empty() ? result : evaluateAtEnd(run, plan, std::move(result));
  }

  /// Of a run that its seconds have ended between two evaluations.
  std::optional<RunResult> evaluateAtEnd(const ExperimentRun &run, const std::string &plan, RunResult result) {
    const std::string folder = folderOf(run);
    const End end =
        children.run(withThreads({gptrun, "eval", plan, "--out-dir", folder, "--exact"}), folder + "/run.log");
    if (end.isStopped)
      return std::nullopt;
    if (end.code != 0)
      return failedBy(result, end);
    const std::optional<double> loss = valLossIn(end.output);
    if (!loss)
      return failedBy(result, exitCodeOf(ErrorCode::Internal), {"", "gptrun eval has printed no validation loss"});
    if (std::isfinite(*loss) && !(*loss >= result.valLoss))
      result.valLoss = *loss, result.valStep = result.steps;
    return result;
  }

  void record(const RunResult &result) {
    if (RunResult *r = resultOf(result.name))
      *r = result;
    else
      results.push_back(result);
    writeResults(resultsFile(), results);
  }

  static std::string inWords(const RunResult &r) {
    if (r.failed)
      return fmt::format("      failed: {}{}", r.error.code.empty() ? "" : r.error.code + ": ", r.error.message);
    return fmt::format("      {} steps, {}{:.4f}, {:.1f} s", r.steps, std::isfinite(r.valLoss) ? "val loss " : "loss ",
                       std::isfinite(r.valLoss) ? r.valLoss : r.loss, r.seconds);
  }
};

}  // namespace

ExperimentReport runExperiment(const ExperimentRequest &request) { return Runner(request).go(); }

}  // namespace gptc
