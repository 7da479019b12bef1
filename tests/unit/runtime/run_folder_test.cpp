// The folder that a run writes in: its lock.
#include "runtime/train/run_folder.h"

#include "tests/unit/runtime/temp_dir.h"

#include <optional>

using namespace gptc;

namespace {

TEST(RunFolder, ALockIsHeldAsLongAsItLives) {
  const TempDir dir;
  const std::string out = dir / "out";
  EXPECT_FALSE(RunLock::isHeld(out));
  EXPECT_FALSE(std::filesystem::exists(out)) << "a question makes nothing";
  std::optional<RunLock> lock(out);
  EXPECT_TRUE(RunLock::isHeld(out));
  EXPECT_TRUE(RunLock::isHeld(out)) << "a question takes nothing";
  EXPECT_EQ(codeThrown([&] { RunLock another(out); }), int(ErrorCode::Unwritable));
  lock.reset();
  EXPECT_FALSE(RunLock::isHeld(out));
  lock.emplace(out);
  EXPECT_TRUE(RunLock::isHeld(out));
}

}  // namespace
