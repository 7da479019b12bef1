#include "codegen/codegen.h"
#include "codegen/object_cache.h"
#include "support.h"
#include "support/diagnostics.h"
#include "tests/support/content.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace gptc;
using namespace gptc::kir;
namespace fs = std::filesystem;

namespace {

/// y = x * factor over 64 elements.
Kernel scale(const std::string &name, double factor) {
  Buffer x = makeBuffer("x", DType::f32, Storage::global, 64),
         y = makeBuffer("y", DType::f32, Storage::global, 64, true);
  Var i = makeVar(name);
  return {name, {x, y}, {loop(LoopKind::vector, i, imm(64), {store(y, ref(i), load(x, ref(i)) * fimm(factor))}, 16)}};
}

float result(const CompiledKernel &c) {
  std::vector<float> x(64, 3), y(64, 0);
  void *params[] = {x.data(), y.data()};
  c.phases[0].run(params, 0, 1);
  return y[63];
}

class Cached : public testing::Test {
protected:
  fs::path dir = fs::temp_directory_path() / ("gptc-jit-test-" + std::to_string(getpid()));
  void SetUp() override { fs::remove_all(dir); }
  void TearDown() override { fs::remove_all(dir); }
  std::vector<fs::path> entries() const {
    std::vector<fs::path> r;
    for (const auto &e : fs::directory_iterator(dir))
      r.push_back(e.path());
    return r;
  }
};

}  // namespace

TEST(Jit, EqualKernelsCompileOnce) {
  Jit jit(hostTarget(2), "");
  Kernel a = scale("a", 2), b = scale("b", 2), c = scale("c", 5);
  auto r = jit.compile({&a, &b, &c});
  EXPECT_EQ(r[0].phases[0].run, r[1].phases[0].run);
  EXPECT_NE(r[0].phases[0].run, r[2].phases[0].run);
  EXPECT_EQ(result(r[1]), 6);
  EXPECT_EQ(result(r[2]), 15);
  EXPECT_EQ(jit.stats.compiled, 2);
  EXPECT_EQ(jit.stats.reused, 0);
  Kernel d = scale("d", 5);
  EXPECT_EQ(jit.compile({&d})[0].phases[0].run, r[2].phases[0].run);
  EXPECT_EQ(jit.stats.compiled, 2);
}

TEST(Jit, CompilesNothing) {
  Jit jit(hostTarget(2), "");
  EXPECT_TRUE(jit.compile({}).empty());
  Kernel empty{"empty", {}, {}};
  EXPECT_TRUE(jit.compile({&empty})[0].phases.empty());
}

TEST(Jit, AFaultyKernelLeavesTheOthersUsable) {
  Jit jit(hostTarget(2), "");
  Buffer x = makeBuffer("x", DType::f32, Storage::global, 4);
  Kernel bad{"bad", {x}, {store(x, imm(0), fimm(1))}}, good = scale("g", 2);
  EXPECT_THROW(jit.compile({&bad, &good}), InternalError);
  EXPECT_EQ(result(jit.compile({&good})[0]), 6);
}

TEST_F(Cached, ASecondProcessReusesObjects) {
  Kernel k = scale("k", 7);
  {
    Jit jit(hostTarget(1), dir.string());
    EXPECT_EQ(result(jit.compile({&k})[0]), 21);
    EXPECT_EQ(jit.stats.compiled, 1);
  }
  struct stat s;
  ASSERT_EQ(stat(dir.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0700u);
  ASSERT_EQ(entries().size(), 1u);
  Jit jit(hostTarget(1), dir.string());
  EXPECT_EQ(result(jit.compile({&k})[0]), 21);
  EXPECT_EQ(jit.stats.compiled, 0);
  EXPECT_EQ(jit.stats.reused, 1);
  // Another target is another key.
  Target other = hostTarget(1);
  other.cpu = "x86-64-v3";
  other.features = "";
  other.vectorBytes = 32;
  Jit second(other, dir.string());
  second.compile({&k});
  EXPECT_EQ(second.stats.compiled, 1);
}

TEST_F(Cached, DamagedEntriesAreCompiledAgain) {
  Kernel k = scale("k", 7);
  {
    Jit(hostTarget(1), dir.string()).compile({&k});
  }
  const fs::path entry = entries().at(0);
  const auto size = fs::file_size(entry);
  for (auto damage : {uintmax_t(0), uintmax_t(20), size / 2, size - 1}) {
    // Once by truncation, once by a changed byte; each time the entry is written anew.
    fs::resize_file(entry, damage);
    {
      Jit jit(hostTarget(1), dir.string());
      EXPECT_EQ(result(jit.compile({&k})[0]), 21);
      EXPECT_EQ(jit.stats.compiled, 1);
    }
    ASSERT_EQ(fs::file_size(entry), size);
    {
      std::fstream f(entry, std::ios::in | std::ios::out | std::ios::binary);
      f.seekg(damage);
      char c = char(f.get() ^ 0x40);
      f.seekp(damage);
      f.put(c);
    }
    Jit jit(hostTarget(1), dir.string());
    EXPECT_EQ(result(jit.compile({&k})[0]), 21);
    EXPECT_EQ(jit.stats.compiled, 1);
  }
  EXPECT_EQ(entries().size(), 1u);
}

TEST_F(Cached, AnEntryUnderTheNameOfAnotherIsCompiledAgain) {
  Kernel seven = scale("k", 7), eight = scale("other", 8);
  {
    Jit(hostTarget(1), dir.string()).compile({&seven});
  }
  const fs::path first = entries().at(0);
  {
    Jit(hostTarget(1), dir.string()).compile({&eight});
  }
  const std::vector<fs::path> both = entries();
  ASSERT_EQ(both.size(), 2u);
  const fs::path second = both[0] == first ? both[1] : both[0];
  fs::copy_file(first, second, fs::copy_options::overwrite_existing);
  for (int compiled : {1, 0}) {  // and it is replaced
    Jit jit(hostTarget(1), dir.string());
    EXPECT_EQ(result(jit.compile({&eight})[0]), 24);
    EXPECT_EQ(jit.stats.compiled, compiled);
  }
  // Likewise where both kernels have one name, and the wrong one would run.
  Kernel nine = scale("k", 9);
  {
    Jit(hostTarget(1), dir.string()).compile({&nine});
  }
  for (const fs::path &p : entries())
    if (p != first && p != second)
      fs::copy_file(first, p, fs::copy_options::overwrite_existing);
  EXPECT_EQ(result(Jit(hostTarget(1), dir.string()).compile({&nine})[0]), 27);
}

TEST_F(Cached, FoldersOpenToOthersAreRefused) {
  Kernel k = scale("k", 7);
  fs::create_directory(dir);
  chmod(dir.c_str(), 0750);
  testing::internal::CaptureStderr();
  Jit jit(hostTarget(1), dir.string());
  std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("open to others (mode 750)"), std::string::npos) << warning;
  EXPECT_EQ(result(jit.compile({&k})[0]), 21);
  EXPECT_TRUE(entries().empty());
  // A link is no folder of ours either.
  fs::path link = dir.string() + "-link";
  chmod(dir.c_str(), 0700);
  fs::create_directory_symlink(dir, link);
  testing::internal::CaptureStderr();
  ObjectCache cache(link.string());
  EXPECT_NE(testing::internal::GetCapturedStderr(), "");
  EXPECT_FALSE(cache.enabled());
  std::string why;
  EXPECT_EQ(openPrivateFolder(link.string(), why), -1);
  EXPECT_NE(why.find("cannot open"), std::string::npos) << why;
  fs::remove(link);
}

// What somebody put in the place of a text is replaced, not followed; a text that is not written whole is not there.
TEST_F(Cached, TextsAreKeptWhereNobodyElseWrites) {
  ObjectCache cache(dir.string());
  fs::path other = dir.string() + "-other";
  std::ofstream(other) << "theirs";
  fs::create_symlink(other, dir / "x.cu");
  std::string why;
  EXPECT_EQ(cache.keep("x.cu", "ours", why), (dir / "x.cu").string());
  EXPECT_EQ(test::contentOf(dir / "x.cu"), "ours");
  EXPECT_EQ(test::contentOf(other), "theirs");
  EXPECT_FALSE(fs::is_symlink(dir / "x.cu"));
  fs::remove(other);

  struct rlimit old, little{10, 10};
  getrlimit(RLIMIT_FSIZE, &old);
  little.rlim_max = old.rlim_max;
  auto handler = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &little);
  const std::string path = cache.keep("y.cu", std::string(1000, 'y'), why);
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(path, "");
  EXPECT_NE(why.find("y.cu: File too large"), std::string::npos) << why;
  EXPECT_EQ(std::distance(fs::directory_iterator(dir), {}), 1) << "only x.cu";

  // Without a cache: a folder that nobody knew before, closed to others.
  const fs::path kept = ObjectCache("").keep("x.cu", "ours", why);
  EXPECT_EQ(test::contentOf(kept), "ours");
  EXPECT_EQ(fs::status(kept.parent_path()).permissions(), fs::perms::owner_all);
  EXPECT_NE(fs::path(ObjectCache("").keep("x.cu", "", why)).parent_path(), kept.parent_path());
  fs::remove_all(kept.parent_path());
}

// Compiler, tuner and executor each look into the cache: what is wrong with it is said once.
TEST(ObjectCache, WhatIsWrongIsSaidOnce) {
  const fs::path open = fs::path(testing::TempDir()) / fmt::format("gptc-open-cache-{}", ::getpid());
  fs::create_directories(open);
  fs::permissions(open, fs::perms::all);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i)
    ObjectCache cache(open.string());
  const std::string said = testing::internal::GetCapturedStderr();
  const size_t first = said.find("warning: no kernel cache: " + open.string());
  EXPECT_EQ(first, 0u) << said;
  EXPECT_EQ(said.find("no kernel cache", first + 20), std::string::npos) << said;
  fs::remove_all(open);
}

// Whoever may write a folder above the cache can put another folder in its place.
TEST(ObjectCache, BelowFoldersOfOthersIsRefused) {
  const fs::path above = fs::canonical(testing::TempDir()) / fmt::format("gptc-above-{}", ::getpid());
  const fs::path cache = above / "between/cache";
  fs::create_directories(cache.parent_path());
  auto whyNot = [](const fs::path &folder) {
    std::string why;
    return ObjectCache::make(folder.string(), why) ? "" : why;
  };
  // Our own, and what is missing is made for us alone, whatever the umask.
  const mode_t umask = ::umask(0);
  EXPECT_EQ(whyNot(above / "new/newer/cache"), "");
  ::umask(umask);
  EXPECT_EQ(fs::status(above / "new/newer").permissions(), fs::perms::owner_all);
  EXPECT_EQ(whyNot(cache), "");

  for (auto [mode, good] : {std::pair(0770, false), {0707, false}, {01777, true}, {0755, true}}) {
    ASSERT_EQ(::chmod(above.c_str(), mode_t(mode)), 0);
    const std::string why = whyNot(cache);
    EXPECT_EQ(why.empty(), good) << fmt::format("{:o}: {}", mode, why);
    EXPECT_EQ(why.find(above.string() + ", above it, may be written by others") == std::string::npos, good) << why;
    EXPECT_EQ(whyNot(above / "unmade").empty(), good);
    EXPECT_EQ(fs::exists(above / "unmade"), good) << "nothing is made there";
    fs::remove(above / "unmade");
  }
  // Neither a link nor "..", nor a relative path, gets around that.
  ASSERT_EQ(::chmod(above.c_str(), 0777), 0);
  const fs::path link = above.string() + "-link";
  fs::create_directory_symlink(above / "between", link);
  EXPECT_NE(whyNot(link / "cache"), "");
  EXPECT_NE(whyNot(link / ".." / "between/cache"), "");
  EXPECT_NE(whyNot(fs::relative(cache)), "");
  ASSERT_EQ(::chmod(above.c_str(), 0755), 0);
  EXPECT_EQ(whyNot(link / "cache"), "");
  EXPECT_EQ(whyNot(link / ".." / "between/cache"), "");
  EXPECT_EQ(whyNot(fs::relative(cache)), "");

  constexpr uid_t somebody = 54321;
  if (::chown((above / "between").c_str(), somebody, gid_t(-1)) == 0) {  // root may
    EXPECT_NE(whyNot(cache).find("above it, belongs to another user (number 54321)"), std::string::npos);
    ASSERT_EQ(::chown((above / "between").c_str(), ::geteuid(), gid_t(-1)), 0);
    ASSERT_EQ(::lchown(link.c_str(), somebody, gid_t(-1)), 0);
    EXPECT_NE(whyNot(link / "cache").find("-link belongs to another user"), std::string::npos);
  }
  fs::remove(link);
  fs::remove_all(above);
}

TEST(Target, MaskedFeaturesAreGone) {
  setenv("GPTC_CPU_FEATURES", "-avx512f", 1);
  Target t = hostTarget(1);
  unsetenv("GPTC_CPU_FEATURES");
  EXPECT_EQ(t.features.find("+avx512"), std::string::npos) << t.features;
  EXPECT_LE(t.vectorBytes, 32u);
  EXPECT_EQ(t.vectorRegisters, 16u);
  Kernel k = scale("k", 7);
  EXPECT_EQ(emitLLVM(k, t, true).find("\"prefer-vector-width\"=\"512\""), std::string::npos);
  // Half of AVX-512 is none: LLVM 19 ends the process over a kernel that needs the other half.
  for (const char *part : {"-avx512bw", "-avx512vl", "-fma", "-f16c"}) {
    const Target half = test::maskedTarget(part);
    EXPECT_EQ(half.features.find("+avx512"), std::string::npos) << part << ": " << half.features;
    EXPECT_LE(half.vectorBytes, 32u) << part;
  }
  for (const char *bad : {"avx2", "-nosuchthing"}) {
    setenv("GPTC_CPU_FEATURES", bad, 1);
    EXPECT_THROW(hostTarget(1), UserError);
  }
  unsetenv("GPTC_CPU_FEATURES");
}

TEST(Target, CountsThreads) {
  EXPECT_EQ(hostTarget(3).threads, 3u);
  setenv("GPTC_THREADS", "5", 1);
  EXPECT_EQ(hostTarget().threads, 5u);
  EXPECT_EQ(hostTarget(2).threads, 2u);
  for (const char *bad : {"0", "-1", "many", "3x", ""}) {
    setenv("GPTC_THREADS", bad, 1);
    EXPECT_THROW(hostTarget(), UserError) << bad;
  }
  unsetenv("GPTC_THREADS");
  EXPECT_GE(hostTarget().threads, 1u);
}
