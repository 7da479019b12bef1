#include "runtime/collectives/background.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>
#include <vector>

namespace gptc {
namespace {

/// Notes the counts of what it runs; waits for `gate` before each bucket, and fails at a count of 13.
class Noting final : public Communicator {
public:
  Noting() : Communicator(Group::all(1), 0) {}
  std::vector<size_t> counts;
  std::promise<void> gate;

private:
  std::shared_future<void> opened = gate.get_future().share();
  void perform(llvm::ArrayRef<Collective> calls, SumOrder) override {
    opened.wait();
    if (calls[0].count == 13)
      throw UserError(ErrorCode::RankFailed, "rank 1 is gone", "");
    counts.push_back(calls[0].count);
  }
  void meet() override {}
  void end() override {}
};

Collective of(size_t count) { return {Collective::Kind::all_reduce, nullptr, nullptr, count, DType::f32}; }

TEST(Background, RunsInOrderWhileTheCallerGoesOn) {
  Noting ranks;
  Background background(ranks);
  background.start(of(1), SumOrder::tree);
  const int64_t second = background.start(of(2), SumOrder::tree);
  EXPECT_TRUE(ranks.counts.empty()) << "it waits for the gate, and the caller does not";
  ranks.gate.set_value();
  background.wait(second);
  EXPECT_EQ(ranks.counts, (std::vector<size_t>{1, 2}));
  background.wait(background.start(of(3), SumOrder::tree));
  EXPECT_EQ(ranks.counts, (std::vector<size_t>{1, 2, 3}));
}

TEST(Background, AFailureIsThrownByEveryWait) {
  Noting ranks;
  ranks.gate.set_value();
  Background background(ranks);
  background.start(of(1), SumOrder::tree);
  const int64_t failing = background.start(of(13), SumOrder::tree);
  const int64_t behind = background.start(of(2), SumOrder::tree);
  EXPECT_THROW(background.wait(failing), UserError);
  EXPECT_THROW(background.wait(behind), UserError);
}

TEST(Background, EndsWithoutRunningWhatHasNotBegun) {
  Noting ranks;
  std::promise<void> ending;
  const std::jthread opener([&] {
    ending.get_future().wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // till the destructor has said so
    ranks.gate.set_value();
  });
  {
    Background background(ranks);
    background.start(of(1), SumOrder::tree);
    background.start(of(2), SumOrder::tree);
    ending.set_value();
  }
  EXPECT_LE(ranks.counts.size(), 1u);
}

}  // namespace
}  // namespace gptc
