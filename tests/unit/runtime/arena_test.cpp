#include "runtime/device/arena.h"

#include "support/diagnostics.h"
#include "support/thread_pool.h"
#include "temp_dir.h"

#include <algorithm>

using namespace gptc;

namespace {

TEST(Arena, HasExactlyThePlannedBytesAndIsZero) {
  ThreadPool pool(2);
  for (int64_t bytes : {int64_t(1), int64_t(64), int64_t(4096), int64_t(4097), int64_t(5 << 20) + 64}) {
    Arena a(bytes, &pool);
    EXPECT_EQ(a.bytes(), bytes);
    EXPECT_TRUE(std::all_of(a.data(), a.data() + bytes, [](std::byte b) { return b == std::byte(0); }));
    std::fill(a.data(), a.data() + bytes, std::byte(1));
    EXPECT_TRUE(a.intact());
  }
}

TEST(Arena, CanaryTellsOfAStoreBehindTheEnd) {
  Arena a(100);
  a.data()[100] = std::byte(0);
  EXPECT_FALSE(a.intact());
}

TEST(Arena, IsResidentOnceMade) {
  int64_t before = residentMemory();
  Arena a(64 << 20);
  int64_t grown = residentMemory() - before;
  EXPECT_GE(grown, 60 << 20);
  EXPECT_LE(grown, 70 << 20);
}

TEST(ArenaDeathTest, GuardPagesFault) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer handles faults itself";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Arena a(8192);
  EXPECT_EXIT(reinterpret_cast<volatile char *>(a.data())[-1] = 1, ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(reinterpret_cast<volatile char *>(a.data())[8192] = 1, ::testing::KilledBySignal(SIGSEGV), "");
}

TEST(Arena, TooMuchIsRefusedBeforehandWithNumbers) {
  EXPECT_GT(availableMemory(), 0);
  std::string message;
  EXPECT_EQ(codeThrown([] { Arena a(int64_t(1) << 45); }, &message), int(ErrorCode::OutOfMemory));
  EXPECT_NE(message.find("35184372088832"), std::string::npos) << message;
}

}  // namespace
