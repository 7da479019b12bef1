// Files that appear complete or not at all, and what killed processes leave of them.
#include "support/atomic_file.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <sys/file.h>
#include <thread>
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
  /// A number that no process has, unlike that of one that has ended: Linux numbers them below 2^22.
  static std::string deadProcess() {
    static int numbers = 1 << 22;
    return std::to_string(++numbers);
  }
  /// A file that was last written two hours ago.
  void makeOld(const std::string &name, const char *content) const {
    std::ofstream(path(name)) << content;
    fs::last_write_time(path(name), fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  bool isLocked(const std::string &name) const {
    const int fd = ::open(path(name).c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_GE(fd, 0) << name;
    const bool is = ::flock(fd, LOCK_EX | LOCK_NB) != 0;
    ::close(fd);
    return is;
  }
  /// How many descriptors of this process lead to the file.
  int descriptorsOf(const std::string &name) const {
    int count = 0;
    std::error_code gone;
    for (const fs::directory_entry &entry : fs::directory_iterator("/proc/self/fd"))
      count += fs::read_symlink(entry.path(), gone) == fs::canonical(dir) / name;
    return count;
  }
  const std::string own = "x.tmp" + std::to_string(::getpid());
  const fs::path dir = fs::path(testing::TempDir()) / ("gptc-atomic-file-" + std::to_string(::getpid()));
};

TEST_F(AtomicFileTest, WhatKilledProcessesLeftIsRemoved) {
  const std::string dead = deadProcess(), other = deadProcess();
  for (const std::string &name : {"x.tmp" + dead, "x.tmp" + other})
    makeOld(name, "half");
  // Those of other files, of living processes, and whatever else is called nearly so.
  const std::set<std::string> stay = {
      "y.tmp" + dead,  "xx.tmp" + dead, "x.tmp0" + dead, "x.tmp" + dead + "a", "x.tmp" + dead + ".",
      "x.tmp-" + dead, "x.tmp",         "x.tmp+" + dead, ".x.tmp" + dead,      "x.tmp" + std::to_string(::getppid())};
  for (const std::string &name : stay)
    makeOld(name, "stays");
  {
    AtomicFile file(path("x"));
    std::set<std::string> meanwhile = stay;
    meanwhile.insert(own);
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
  makeOld(name, "");
  const int writer = ::open(path(name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(::flock(writer, LOCK_EX), 0);
  fs::create_symlink("elsewhere", path(link));
  std::ofstream(path("elsewhere")) << "stays";
  AtomicFile(path("x")).commit();
  EXPECT_EQ(names(), (std::set<std::string>{"x", name, link, "elsewhere"}));
  ::close(writer);
  AtomicFile(path("x")).commit();
  EXPECT_EQ(names(), (std::set<std::string>{"x", link, "elsewhere"}));
}

// As of a machine whose locks are not seen here.
TEST_F(AtomicFileTest, WhatWasWrittenLatelyStays) {
  const std::string name = "x.tmp" + deadProcess();
  std::ofstream(path(name)) << "half";
  AtomicFile(path("x")).commit();
  EXPECT_EQ(names(), (std::set<std::string>{"x", name}));
  makeOld(name, "half");
  AtomicFile(path("x")).commit();
  EXPECT_EQ(names(), (std::set<std::string>{"x"}));
}

TEST_F(AtomicFileTest, IsLockedUntilItHasItsName) {
  {
    AtomicFile file(path("x"));
    file.append("whole");
    EXPECT_TRUE(isLocked(own));
    file.finish();
    EXPECT_TRUE(isLocked(own));
    file.commit();
    EXPECT_FALSE(isLocked("x"));
  }
  EXPECT_EQ(names(), (std::set<std::string>{"x"}));
}

// Another process holds the lock of a file of that name, and removes it while an AtomicFile opens it.
TEST_F(AtomicFileTest, WhatIsRemovedWhileItIsOpenedIsMadeAnew) {
  makeOld(own, "left by a process of the same number");
  const int remover = ::open(path(own).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(remover, LOCK_EX), 0);
  std::atomic<bool> hasEnded = false;
  std::thread writer([&] {
    try {
      AtomicFile file(path("x"));
      file.append("whole");
      file.commit();
    } catch (const UserError &e) {
      ADD_FAILURE() << e.what();
    }
    hasEnded = true;
  });
  while (!hasEnded && descriptorsOf(own) < 2)
    std::this_thread::yield();
  ::unlink(path(own).c_str());
  ::close(remover);
  writer.join();
  EXPECT_EQ(names(), (std::set<std::string>{"x"}));
  std::string content;
  std::ifstream(path("x")) >> content;
  EXPECT_EQ(content, "whole");
}

}  // namespace
