#include "runtime/train/stop_signals.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <unistd.h>

using namespace gptc;

namespace {

/// A process to which these signals come; its exit code says whether it was asked to stop.
void stopped(bool answers, int64_t inStep, int64_t after, std::initializer_list<int> signals) {
  StopSignals s(answers);
  if (after >= 0)
    s.after(after);
  if (inStep >= 0)
    s.inStep(inStep);
  for (int number : signals)
    ::raise(number);
  ::_exit(StopSignals::asked() ? 7 : 1);
}

TEST(StopSignalsDeathTest, AreAnsweredAtOnce) {
  const std::string more = "; once more to end at once\n$";
  EXPECT_EXIT(stopped(true, -1, -1, {SIGINT}), ::testing::ExitedWithCode(7),
              "^stopping: the run is starting and ends as soon as it can" + more);
  EXPECT_EXIT(stopped(true, 12, -1, {SIGINT}), ::testing::ExitedWithCode(7), "^finishing step 12, saving" + more);
  EXPECT_EXIT(stopped(true, 120050, 3, {SIGTERM}), ::testing::ExitedWithCode(7),
              "^finishing step 120050, saving" + more);
  EXPECT_EXIT(stopped(true, -1, 0, {SIGHUP}), ::testing::ExitedWithCode(7), "^stopping after step 0, saving" + more);
}

TEST(StopSignalsDeathTest, AreAnsweredOnce) {
  // What comes within half a second is one wish.
  EXPECT_EXIT(stopped(true, 5, -1, {SIGINT, SIGINT, SIGTERM}), ::testing::ExitedWithCode(7),
              "^finishing step 5, saving; once more to end at once\n$");
  EXPECT_EXIT(stopped(false, 5, -1, {SIGINT}), ::testing::ExitedWithCode(7), "^$");
}

}  // namespace
