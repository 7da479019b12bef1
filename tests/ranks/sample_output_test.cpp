// Where samples are printed: readers that pause, and readers that go.
#include "tools/serve/sample_output.h"

#include "runtime/collectives/communicator.h"
#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <future>
#include <thread>
#include <vector>

using namespace gptc;
using std::chrono::milliseconds;

namespace {

/// One of two ranks, whose broadcasts of a word the test takes or gives.
class OneOfTwo : public Communicator {
public:
  OneOfTwo(int rank, std::function<void(int64_t &)> onWord)
      : Communicator(Group::all(2), rank), onWord(std::move(onWord)) {}

protected:
  void perform(llvm::ArrayRef<Collective> calls, SumOrder) override {
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].str(), "broadcast of 1 i64");
    onWord(*static_cast<int64_t *>(calls[0].to));
  }
  void meet() override {}
  void end() override {}

private:
  const std::function<void(int64_t &)> onWord;
};

constexpr int64_t isWaiting = 0, readsOn = 1, hasGone = 2;

struct SampleOutputTest : ::testing::Test {
  SampleOutputTest() {
    ::signal(SIGPIPE, SIG_IGN);
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  }
  ~SampleOutputTest() override {
    closeEnd(0);
    closeEnd(1);
  }
  void closeEnd(int end) {
    if (ends[end] >= 0)
      ::close(std::exchange(ends[end], -1));
  }
  std::string readAll() const {
    std::string all, some(1 << 16, '\0');
    for (ssize_t n; (n = ::read(ends[0], some.data(), some.size())) > 0;)
      all.append(some, 0, size_t(n));
    return all;
  }
  int ends[2] = {-1, -1};
  const std::string large = std::string(1 << 20, 'x') + "\n";  // more than a pipe holds
};

TEST_F(SampleOutputTest, WhileAReaderPausesOthersHearOfIt) {
  std::vector<int64_t> words;
  std::promise<void> three;
  OneOfTwo ranks(0, [&](int64_t &word) {
    words.push_back(word);
    if (words.size() == 3)
      three.set_value();
  });
  // The reader reads once it is said thrice that it pauses; in any case in the end.
  std::thread reader;
  std::string got;
  std::future_status said{};
  reader = std::thread([&, heard = three.get_future()] {
    said = heard.wait_for(std::chrono::seconds(60));
    got = readAll();
  });
  SampleOutput output(&ranks, ends[1], milliseconds(1));
  output.write(large);
  EXPECT_FALSE(output.isClosed());
  closeEnd(1);
  reader.join();
  EXPECT_EQ(said, std::future_status::ready);
  EXPECT_TRUE(got == large);
  ASSERT_GE(words.size(), 4u);
  EXPECT_EQ(words.back(), readsOn);
  words.pop_back();
  EXPECT_EQ(words, std::vector<int64_t>(words.size(), isWaiting));
}

TEST_F(SampleOutputTest, OtherRanksWriteNothingAndWaitForAnAnswer) {
  const std::vector<int64_t> script = {isWaiting, isWaiting, readsOn, isWaiting, hasGone};
  size_t at = 0;
  OneOfTwo ranks(1, [&](int64_t &word) { word = script.at(at++); });
  SampleOutput output(&ranks, ends[1]);
  output.write(large);
  EXPECT_FALSE(output.isClosed());
  EXPECT_EQ(at, 3u);
  EXPECT_TRUE(output.isClosed());
  EXPECT_EQ(at, 5u);
  closeEnd(1);
  EXPECT_EQ(readAll(), "");
}

TEST_F(SampleOutputTest, AReaderThatGoesIsNoError) {
  closeEnd(0);
  std::vector<int64_t> words;
  OneOfTwo ranks(0, [&](int64_t &word) { words.push_back(word); });
  SampleOutput output(&ranks, ends[1], std::chrono::hours(1)), alone(nullptr, ends[1]);
  for (SampleOutput *o : {&output, &alone}) {
    EXPECT_FALSE(o->isClosed());
    o->write("x");
    EXPECT_TRUE(o->isClosed());
    o->write(large);
    EXPECT_TRUE(o->isClosed());
  }
  EXPECT_EQ(words, (std::vector<int64_t>{readsOn, hasGone, hasGone}));
}

TEST_F(SampleOutputTest, AFullDiskIsAnError) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  OneOfTwo ranks(0, [](int64_t &) {});
  for (Communicator *of : {static_cast<Communicator *>(&ranks), static_cast<Communicator *>(nullptr)})
    try {
      SampleOutput(of, full).write("x");
      ADD_FAILURE();
    } catch (const UserError &e) {
      EXPECT_EQ(e.diagnostics[0].code, ErrorCode::DiskFull);
    }
  ::close(full);
}

// Rank 0 ends at once, though its reader still pauses.
TEST_F(SampleOutputTest, AFailureOfAnotherRankDoesNotWaitForTheReader) {
  OneOfTwo ranks(0, [](int64_t &) { throw UserError(ErrorCode::RankFailed, "rank 1 has gone"); });
  SampleOutput output(&ranks, ends[1], milliseconds(1));
  EXPECT_THROW(output.write(large), UserError);
  ends[1] = -1;  // stays open for what is still being written, and ends with its reader
}

}  // namespace
