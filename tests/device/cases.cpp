#include "tests/device/cases.h"

#include "codegen/codegen.h"
#include "support/diagnostics.h"
#include "support/json.h"
#include "tools/planner/cache_dir.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <poll.h>
#include <regex>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gptc::test {

namespace {

using nlohmann::json;

struct Options {
  std::string results, cases, prepare;
  int caseSeconds = 60;
  bool oneProcess = false, uninitialised = false;
} options;

// Something is wrong with more than a case: the rest need not be tried.
constexpr int mostProcesses = 25, mostThatDidNotEnd = 3;
constexpr int compileSeconds = 1800;

int resultsFile = -1;
std::vector<std::string> failures;  // of all tests, one line each

std::string text(const json &j) { return j.dump(-1, ' ', false, json::error_handler_t::replace); }

/// Whole lines at once, so that a kill loses none.
void addLine(int fd, const std::string &line) {
  const std::string whole = line + "\n";
  for (size_t at = 0; fd >= 0 && at < whole.size();) {
    const ssize_t n = ::write(fd, whole.data() + at, whole.size() - at);
    if (n < 0 && errno != EINTR)
      return;
    at += n < 0 ? 0 : size_t(n);
  }
}

/// A process that writes lines; it ends with this one.
class Child {
public:
  explicit Child(const std::function<void(int to)> &body) {
    int ends[2];
    GPTC_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "pipe: {}", std::strerror(errno));
    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    pid = ::fork();
    GPTC_CHECK(pid >= 0, "fork: {}", std::strerror(errno));
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent)
        ::_exit(1);
      body(ends[1]);
      std::fflush(nullptr);
      ::_exit(0);  // nothing of the parent's is to be taken down here
    }
    ::close(ends[1]);
    from = ends[0];
  }
  ~Child() {
    ::close(from);
    if (pid > 0) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  Child(const Child &) = delete;

  enum class Read { line, end, late };
  Read read(std::string &line, int seconds) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (true) {
      if (const size_t n = rest.find('\n'); n != std::string::npos) {
        line = rest.substr(0, n);
        rest.erase(0, n + 1);
        return Read::line;
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      pollfd p{from, POLLIN, 0};
      const int ready = ::poll(&p, 1, int(std::max<int64_t>(left.count(), 0)));
      if (ready == 0)
        return Read::late;
      char some[4096];
      const ssize_t n = ready < 0 ? -1 : ::read(from, some, sizeof some);
      if (n == 0)
        return Read::end;
      if (n > 0)
        rest.append(some, size_t(n));
      else
        GPTC_CHECK(errno == EINTR, "read: {}", std::strerror(errno));
    }
  }
  /// How it ended, after the last line: "by signal 11 (Segmentation fault)".
  std::string end() {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR)
      ;
    pid = -1;
    return WIFSIGNALED(status) ? fmt::format("by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                               : fmt::format("with exit code {}", WEXITSTATUS(status));
  }

private:
  pid_t pid;
  int from;
  std::string rest;
};

/// Puts the stand-ins in the driver's place where there is none, in a program that has them. It is looked for in
/// another process: one that has loaded it is not to be forked.
void chooseLibraries() {
  if (!standinFolder || std::getenv("GPTC_CUDA"))
    return;
  Child child([](int to) { addLine(to, CudaLibrary::lookUp(CudaLibraryId::driver) ? "found" : "none"); });
  std::string line;
  if (child.read(line, 120) == Child::Read::line && line == "none")
    setenv("GPTC_CUDA", standinFolder, 1);
}

std::string whatOf(const std::exception_ptr &e) {
  try {
    std::rethrow_exception(e);
  } catch (const UserError &u) {
    return u.diagnostics[0].message;
  } catch (const std::exception &x) {
    return x.what();
  }
}

/// A folder for as long as this process lives.
const std::string &ownCacheDir() {
  struct Folder {
    std::string path = (std::filesystem::temp_directory_path() / "gptc-device-XXXXXX").string();
    const pid_t owner = ::getpid();
    Folder() { GPTC_CHECK(::mkdtemp(path.data()), "{}: {}", path, std::strerror(errno)); }
    ~Folder() {
      std::error_code ec;
      if (::getpid() == owner)
        std::filesystem::remove_all(path, ec);
    }
  };
  static const Folder folder;
  return folder.path;
}

DeviceInfo askDevice() {
  DeviceInfo info;
  const bool standins = CudaLibrary::get(CudaLibraryId::nvrtc).path.find("standin") != std::string::npos;
  if (!standins || std::getenv("GPTC_CACHE"))
    info.cacheDir = defaultCacheDir();
  if (info.cacheDir.empty())
    info.cacheDir = ownCacheDir();
  auto describe = [](TestDevice &d) { return json{{"gpu", d.isGpu}, {"name", d.name}, {"arch", d.architecture}}; };
  json said;
  if (!options.prepare.empty()) {
    said = {{"gpu", true}, {"name", "no GPU"}, {"arch", options.prepare}};
  } else if (options.oneProcess) {
    said = describe(TestDevice::get());
  } else {
    Child child([&](int to) {
      try {
        addLine(to, text(describe(TestDevice::get())));
      } catch (...) {
        addLine(to, text({{"problem", whatOf(std::current_exception())}}));
      }
    });
    std::string line;
    if (child.read(line, 120) == Child::Read::line)
      said = parseJson<json>(line);
    else
      said = {{"problem", "the device could not be opened within 120 s, or the process ended"}};
  }
  if (said.contains("problem"))
    throw std::runtime_error(said["problem"]);
  info.isGpu = said["gpu"];
  info.name = said["name"];
  info.target = cudaTarget("cuda:" + said["arch"].get<std::string>());
  return info;
}

Finding found(const DeviceCase &c) {
  try {
    return c.run(TestDevice::get());
  } catch (...) {
    return {.problem = whatOf(std::current_exception()), .isDead = true};
  }
}

/// Runs cases in order, from one on, and tells each one's beginning and end.
class Runner {
public:
  Runner(const std::string &test, const std::vector<const DeviceCase *> &cases) : test(test), cases(cases) {}

  Outcomes run() {
    size_t next = 0;
    int processes = 0, late = 0;
    while (next < cases.size()) {
      if (++processes > mostProcesses || late >= mostThatDidNotEnd)
        return notRun(next, fmt::format("{} processes have ended before their time", processes - 1));
      const size_t first = next;
      const DeviceCase *running = nullptr;
      std::string opened;
      Child child([&](int to) { inChild(first, to); });
      while (true) {
        std::string line;
        const Child::Read read = child.read(line, running ? options.caseSeconds : std::max(options.caseSeconds, 120));
        if (read == Child::Read::line) {
          const json said = parseJson<json>(line);
          if (said.contains("unusable")) {
            opened = said["unusable"];
          } else if (said.contains("begun")) {
            next = said["begun"].get<size_t>() + 1;
            running = cases[next - 1];
            begun(*running);
          } else {
            ended(*running, {.problem = said["problem"], .said = said["said"], .skipped = said["skipped"]},
                  said["seconds"]);
            running = nullptr;
          }
          continue;
        }
        std::string why;
        if (read == Child::Read::late) {
          why = running ? fmt::format("did not end within {} s", options.caseSeconds) : "the device does not open";
          ++late;
        } else {
          why = "the process ended " + child.end();
        }
        if (running) {
          ended(*running, {.problem = why}, 0);
        } else if (next == first) {
          return notRun(next, opened.empty() ? why : opened);
        }
        break;
      }
    }
    return std::move(outcomes);
  }

  Outcomes runHere() {
    for (size_t i = 0; i < cases.size(); ++i) {
      begun(*cases[i]);
      const Finding f = found(*cases[i]);
      ended(*cases[i], f, 0);
      if (f.isDead)
        return notRun(i + 1, "the process can use the device no more");
    }
    return std::move(outcomes);
  }

private:
  const std::string &test;
  const std::vector<const DeviceCase *> &cases;
  Outcomes outcomes;

  void inChild(size_t first, int to) {
    try {
      TestDevice::get();
    } catch (...) {
      addLine(to, text({{"unusable", whatOf(std::current_exception())}}));
      return;
    }
    for (size_t i = first; i < cases.size(); ++i) {
      addLine(to, text({{"begun", i}}));
      const auto begin = std::chrono::steady_clock::now();
      const Finding f = found(*cases[i]);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      addLine(to, text({{"problem", f.problem}, {"said", f.said}, {"skipped", f.skipped}, {"seconds", took.count()}}));
      if (f.isDead)
        return;
    }
  }
  json lineOf(const DeviceCase &c, const char *result) const {
    json line{{"test", test}, {"case", c.name}, {"result", result}};
    for (const auto &[key, value] : c.about)
      line[key] = value;
    return line;
  }
  void begun(const DeviceCase &c) const {
    addLine(resultsFile, text({{"test", test}, {"case", c.name}, {"result", "begun"}}));
  }
  void ended(const DeviceCase &c, const Finding &f, double seconds) {
    json line = lineOf(c, !f.problem.empty() ? "fail" : !f.skipped.empty() ? "skipped" : "pass");
    line["seconds"] = seconds;
    if (!f.problem.empty())
      line["problem"] = f.problem;
    if (!f.skipped.empty())
      line["why"] = outcomes.why = f.skipped;
    addLine(resultsFile, text(line));
    if (!f.problem.empty()) {
      ++outcomes.failed;
      const auto kernel = c.about.find("kernel");
      const std::string name =
          fmt::format("{}/{}{}", test, c.name, kernel == c.about.end() ? "" : fmt::format(" ({})", kernel->second));
      failures.push_back(fmt::format("{}: {}", name, f.problem.substr(0, f.problem.find('\n'))));
      ADD_FAILURE() << name << ":\n" << f.problem;
    } else {
      ++(f.skipped.empty() ? outcomes.passed : outcomes.skipped);
      ++outcomes.said[f.said];
    }
  }
  Outcomes notRun(size_t from, const std::string &why) {
    for (size_t i = from; i < cases.size(); ++i) {
      json line = lineOf(*cases[i], "not run");
      line["why"] = why;
      addLine(resultsFile, text(line));
    }
    if (from < cases.size()) {
      failures.push_back(fmt::format("{}: {} cases were not run: {}", test, cases.size() - from, why));
      ADD_FAILURE() << failures.back();
    }
    return std::move(outcomes);
  }
};

const char *const usage = R"(Runs kernels on the GPU of this machine and compares them. Options, beside GoogleTest's:
  --results FILE       a line of JSON for each case as it begins and as it ends
  --cases REGEX        only cases in whose TEST/NAME this is found
  --case-seconds N     a case that does not end in N seconds has failed (60)
  --prepare ARCH       compile all kernels for sm_90a, say, into the cache, and run none: needs no GPU
  --one-process        run all cases in this process, and none behind one that fails with an error of the driver
  --uninitialised      leave results and workspaces uninitialised and compare nothing, for compute-sanitizer's initcheck
)";

bool parse(int argc, char **argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--one-process") {
      options.oneProcess = true;
    } else if (name == "--uninitialised") {
      options.uninitialised = true;
    } else if (i + 1 == argc) {
      return false;
    } else if (name == "--results") {
      options.results = argv[++i];
    } else if (name == "--cases") {
      options.cases = argv[++i];
    } else if (name == "--prepare") {
      options.prepare = argv[++i];
    } else if (name == "--case-seconds") {
      options.caseSeconds = std::atoi(argv[++i]);
    } else {
      return false;
    }
  }
  return options.caseSeconds > 0;
}

}  // namespace

const DeviceInfo &deviceInfo() {
  static const DeviceInfo info = askDevice();
  return info;
}

std::vector<std::string> compileElsewhere(const std::function<std::vector<std::string>()> &compile) {
  if (onlyPrepares() || options.oneProcess)
    return compile();
  deviceInfo();
  Child child([&](int to) {
    try {
      addLine(to, text(json{{"said", compile()}}));
    } catch (...) {
      addLine(to, text({{"problem", whatOf(std::current_exception())}}));
    }
  });
  std::string line;
  const Child::Read read = child.read(line, compileSeconds);
  if (read != Child::Read::line)
    throw std::runtime_error(read == Child::Read::late
                                 ? fmt::format("kernels were not compiled within {} s", compileSeconds)
                                 : "the process that compiles ended " + child.end());
  const json said = parseJson<json>(line);
  if (said.contains("problem"))
    throw std::runtime_error(said["problem"]);
  return said["said"].get<std::vector<std::string>>();
}

bool isAskedFor(const std::string &test, const std::string &name) {
  static const std::regex wanted(options.cases);
  return options.cases.empty() || std::regex_search(test + "/" + name, wanted);
}
bool onlyPrepares() { return !options.prepare.empty(); }
bool leavesUninitialised() { return options.uninitialised; }

Outcomes runCases(const std::string &test, const std::vector<DeviceCase> &cases) {
  std::vector<const DeviceCase *> wanted;
  for (const DeviceCase &c : cases)
    if (isAskedFor(test, c.name))
      wanted.push_back(&c);
  if (onlyPrepares())
    return {};
  Runner runner(test, wanted);
  return options.oneProcess ? runner.runHere() : runner.run();
}

void record(const std::string &test, const std::map<std::string, double> &figures) {
  json line{{"test", test}};
  for (const auto &[key, value] : figures)
    line[key] = value;
  addLine(resultsFile, text(line));
}

int deviceTests(int argc, char **argv) {
  for (int i = 1; i < argc; ++i)
    if (argv[i] == std::string("--help"))
      fmt::print("{}\n", usage);
  testing::InitGoogleTest(&argc, argv);
  if (!parse(argc, argv)) {
    fmt::print(stderr, "{}", usage);
    return 2;
  }
  if (!options.results.empty()) {
    resultsFile = ::open(options.results.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (resultsFile < 0) {
      fmt::print(stderr, "{}: {}\n", options.results, std::strerror(errno));
      return 3;
    }
  }
  chooseLibraries();
  const int code = RUN_ALL_TESTS();
  constexpr size_t most = 10;
  for (size_t i = 0; i < std::min(most, failures.size()); ++i)
    fmt::print("failed: {}\n", failures[i]);
  if (failures.size() > most)
    fmt::print("failed: {} more\n", failures.size() - most);
  return code;
}

}  // namespace gptc::test
