// Files that appear complete or not at all, and what killed processes leave of them.
#include "support/atomic_file.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

class AtomicFileTest : public ::testing::Test {
protected:
  void SetUp() override { fs::create_directories(dir); }
  void TearDown() override { fs::remove_all(dir); }
  std::string path(const std::string &name) const { return (dir / name).string(); }
  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const fs::directory_entry &entry : fs::directory_iterator(dir))
      all.insert(entry.path().filename().string());
    return all;
  }
  /// The number of a process that has ended.
  static std::string deadProcess() {
    const pid_t pid = ::fork();
    if (pid == 0)
      ::_exit(0);
    ::waitpid(pid, nullptr, 0);
    return std::to_string(pid);
  }
  const fs::path dir = fs::path(testing::TempDir()) / ("gptc-atomic-file-" + std::to_string(::getpid()));
};

TEST_F(AtomicFileTest, WhatKilledProcessesLeftIsRemoved) {
  const std::string dead = deadProcess(), other = deadProcess();
  for (const std::string &name : {"x.tmp" + dead, "x.tmp" + other})
    std::ofstream(path(name)) << "half";
  // Those of other files, of living processes, and whatever else is called nearly so.
  const std::set<std::string> stay = {
      "y.tmp" + dead,  "xx.tmp" + dead, "x.tmp0" + dead, "x.tmp" + dead + "a", "x.tmp" + dead + ".",
      "x.tmp-" + dead, "x.tmp",         "x.tmp+" + dead, ".x.tmp" + dead,      "x.tmp" + std::to_string(::getppid())};
  for (const std::string &name : stay)
    std::ofstream(path(name)) << "stays";
  {
    AtomicFile file(path("x"));
    std::set<std::string> meanwhile = stay;
    meanwhile.insert("x.tmp" + std::to_string(::getpid()));
    EXPECT_EQ(names(), meanwhile);
    file.append("whole");
    file.commit();
  }
  std::set<std::string> after = stay;
  after.insert("x");
  EXPECT_EQ(names(), after);
}

// As of a process of another machine that shares the folder.
TEST_F(AtomicFileTest, WhatIsBeingWrittenStays) {
  const std::string name = "x.tmp" + deadProcess(), link = "x.tmp" + deadProcess();
  const int writer = ::open(path(name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(::flock(writer, LOCK_EX), 0);
  fs::create_symlink("elsewhere", path(link));
  std::ofstream(path("elsewhere")) << "stays";
  AtomicFile(path("x")).commit();
  EXPECT_EQ(names(), (std::set<std::string>{"x", name, link, "elsewhere"}));
  ::close(writer);
  AtomicFile(path("x")).commit();
  EXPECT_EQ(names(), (std::set<std::string>{"x", link, "elsewhere"}));
  // And so does every AtomicFile hold its own.
  {
    const AtomicFile file(path("x"));
    const int fd = ::open(path("x.tmp" + std::to_string(::getpid())).c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_NE(::flock(fd, LOCK_EX | LOCK_NB), 0);
    ::close(fd);
  }
  EXPECT_EQ(names(), (std::set<std::string>{"x", link, "elsewhere"}));
}

}  // namespace
