#include "tests/support/ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <poll.h>
#include <spawn.h>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace gptc::test {

namespace {

constexpr const char *variable = "GPTC_TEST_RANK";

std::map<std::string, RankScenario> &scenarios() {
  static std::map<std::string, RankScenario> all;
  return all;
}

/// Runs before any test: a program started as a rank runs its scenario and no tests.
class RankEnvironment : public testing::Environment {
  void SetUp() override {
    const char *text = std::getenv(variable);
    if (!text)
      return;
    std::istringstream in(text);
    std::string scenario;
    RankPlace place;
    in >> scenario >> place.rank >> place.world >> place.folder;
    int status = 0;
    try {
      scenarios().at(scenario)(place);
    } catch (const std::exception &e) {
      std::printf("%s", e.what());
      status = 1;
    }
    std::fflush(stdout);
    _exit(status);
  }
};
const auto *const environment = testing::AddGlobalTestEnvironment(new RankEnvironment);

}  // namespace

RankScenarioAdded::RankScenarioAdded(const char *name, RankScenario run) { scenarios()[name] = run; }

std::vector<RankOutcome> runRanks(const RankRun &run) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "gptc-ranks-XXXXXX").string();
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  std::vector<int> ranks = run.ranks;
  for (int r = 0; ranks.size() < size_t(run.world) && run.ranks.empty(); ++r)
    ranks.push_back(r);
  struct Child {
    pid_t pid;
    int out;
    bool ended = false;
  };
  std::vector<Child> children;
  std::vector<RankOutcome> outcomes(ranks.size());
  for (int rank : ranks) {
    std::vector<std::string> environment = run.environment;
    environment.push_back(fmt::format("{}={} {} {} {}", variable, run.scenario, rank, run.world, folder));
    for (char **e = environ; *e; ++e)
      if (std::string(*e).rfind("GTEST_", 0) != 0)
        environment.push_back(*e);
    std::vector<char *> pointers;
    for (std::string &e : environment)
      pointers.push_back(e.data());
    pointers.push_back(nullptr);
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    std::string program = "/proc/self/exe", quiet = "--gtest_brief=1";
    char *arguments[] = {program.data(), quiet.data(), nullptr};
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, pointers.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int left = run.expected < 0 ? int(ranks.size()) : run.expected;
  auto look = [&](size_t i, int flags) {
    int status = 0;
    if (children[i].ended || waitpid(children[i].pid, &status, flags) != children[i].pid)
      return;
    children[i].ended = true;
    --left;
    outcomes[i].status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  };
  while (left > 0 && std::chrono::steady_clock::now() < until) {
    for (size_t i = 0; i < children.size(); ++i)
      look(i, WNOHANG);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (size_t i = 0; i < children.size(); ++i)
    if (!children[i].ended) {
      outcomes[i].hung = true;
      kill(children[i].pid, SIGKILL);
      look(i, 0);
    }
  for (size_t i = 0; i < children.size(); ++i) {
    char buffer[4096];
    for (ssize_t n; (n = read(children[i].out, buffer, sizeof buffer)) > 0;)
      outcomes[i].text.append(buffer, size_t(n));
    close(children[i].out);
  }
  fs::remove_all(folder);
  return outcomes;
}

}  // namespace gptc::test
