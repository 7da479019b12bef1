// Which processes count as on one machine: those that can share memory.
#include "runtime/collectives/shared_links.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace gptc;

namespace {

/// In another process: what `enters` makes of it, 77 if the system refuses that, or whether its machine is `machine`.
int sameMachineAfter(const std::string &machine, bool (*enters)()) {
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(!enters() ? 77 : machineId() == machine ? 1 : 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Machine, ContainersWithUsersOfTheirOwnAreOthers) {
  const std::string here = machineId();
  ASSERT_FALSE(here.empty());
  EXPECT_EQ(sameMachineAfter(here, [] { return true; }), 1);
  const int same = sameMachineAfter(here, [] {
    // As rootless containers do it: the user has the same number inside.
    const uid_t user = ::geteuid();
    return ::unshare(CLONE_NEWUSER) == 0 &&
           bool(std::ofstream("/proc/self/uid_map") << fmt::format("{0} {0} 1\n", user) << std::flush) &&
           ::geteuid() == user;
  });
  if (same == 77)
    GTEST_SKIP() << "the system refuses namespaces of users";
  EXPECT_EQ(same, 0);
}

}  // namespace
