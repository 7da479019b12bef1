#include "runtime/tuning/cache_secret.h"

#include "temp_dir.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sys/stat.h>
#include <thread>
#include <vector>

using namespace gptc;
namespace fs = std::filesystem;

namespace {

TEST(CacheSecret, IsMadeOnceAndReadByItsOwnerAlone) {
  TempDir dir;
  const std::string cache = dir / "cache", key = cache + "/tuning.key";
  EXPECT_EQ(cacheSecret(cache), "");
  EXPECT_EQ(cacheSecret(""), "");
  EXPECT_EQ(neededCacheSecret(""), "");
  std::vector<std::string> got(8);
  std::vector<std::thread> threads;
  for (std::string &g : got)
    threads.emplace_back([&] { g = neededCacheSecret(cache); });
  for (std::thread &t : threads)
    t.join();
  EXPECT_EQ(std::set<std::string>(got.begin(), got.end()).size(), 1u);
  EXPECT_EQ(got[0].size(), 64u);
  EXPECT_EQ(cacheSecret(cache), got[0]);
  EXPECT_EQ(fs::status(key).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(std::distance(fs::directory_iterator(cache), {}), 1);

  // What others may know is none, nor is a part of one: another takes its place.
  ::chmod(key.c_str(), 0644);
  EXPECT_EQ(cacheSecret(cache), "");
  const std::string next = neededCacheSecret(cache);
  EXPECT_EQ(next.size(), 64u);
  EXPECT_NE(next, got[0]);
  fs::resize_file(key, 10);
  EXPECT_EQ(cacheSecret(cache), "");
  EXPECT_EQ(neededCacheSecret(cache).size(), 64u);
  ::chmod(cache.c_str(), 0755);
  EXPECT_EQ(cacheSecret(cache), "");
  EXPECT_EQ(neededCacheSecret(cache), "");
}

}  // namespace
