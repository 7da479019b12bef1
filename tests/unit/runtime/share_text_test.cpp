// Text from rank 0 to the others, on threads.
#include "runtime/collectives/share_text.h"

#include "runtime/collectives/in_process.h"

#include <gtest/gtest.h>

#include <thread>

using namespace gptc;

namespace {

TEST(ShareText, AllGetTheBytesOfRankZero) {
  for (const size_t size : {0, 1, 3, 4, 5, 8, 100003}) {
    std::string text;
    for (size_t i = 0; i < size; ++i)
      text.push_back(char(i * 37));
    constexpr int world = 3;
    InProcess together(world, std::chrono::seconds(20));
    std::vector<std::string> got(world), again(world);
    std::vector<std::thread> ranks;
    for (int r = 0; r < world; ++r)
      ranks.emplace_back([&, r] {
        const std::unique_ptr<Communicator> mine = together.join(r);
        got[size_t(r)] = shareText(*mine, r == 0 ? text : "of no interest");
        again[size_t(r)] = shareText(*mine, r == 0 ? "twice" : "");
        mine->finish();
      });
    for (std::thread &t : ranks)
      t.join();
    EXPECT_EQ(got, std::vector<std::string>(world, text)) << size;
    EXPECT_EQ(again, std::vector<std::string>(world, "twice")) << size;
  }
}

// A file of prompts may be large.
TEST(ShareText, RankZerosTextIsNotCopied) {
  InProcess together(2, std::chrono::seconds(20));
  std::thread other([&] {
    const std::unique_ptr<Communicator> mine = together.join(1);
    EXPECT_EQ(shareText(*mine, ""), std::string(4000, 'x'));
    mine->finish();
  });
  const std::unique_ptr<Communicator> mine = together.join(0);
  std::string text(4000, 'x');
  const char *const at = text.data();
  const std::string shared = shareText(*mine, std::move(text));
  EXPECT_EQ(static_cast<const void *>(shared.data()), at);
  mine->finish();
  other.join();
}

}  // namespace
