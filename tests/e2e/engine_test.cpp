// What the engine of `gptrun serve` holds for its clients, and whose answer it drops.
#include "tests/support/harness.h"

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/plan/plan.h"
#include "runtime/train/session.h"
#include "tools/compiler/inference.h"
#include "tools/serve/engine.h"

#include <optional>
#include <vector>

using namespace e2e;
using namespace gptc;

namespace {

/// A model that was hardly trained: what it says does not matter.
class EngineTest : public ::testing::Test {
protected:
  EngineTest() {
    w.useCats();
    const std::string plan = w.compile("plan", {"train.steps=1"});
    w.train(plan, "out");
    tokenizer.emplace(Tokenizer::load(w.path("data/tokenizer.json")));
    Plan trained = loadPlan(plan);
    const ModelIdentity model = modelIdentity(*trained.planned);
    session.emplace(servingPlan(std::move(trained), 2, cacheDir()), cacheDir(), 2);
    loadWeights(session->executor, w.path("out/checkpoints/") + w.checkpoints(w.path("out")).back(), model);
  }
  /// Answers of `tokens` tokens each.
  std::shared_ptr<Job> job(int64_t samples, int64_t tokens, Job::Pieces form, ByteBudget &bytes) const {
    CompletionRequest r{.prompt = {1}, .n = samples, .ignoreEnd = true};
    r.options.maxTokens = tokens;
    r.options.tokens = tokenizer->vocabSize();
    r.options.temperature = 1;
    return std::make_shared<Job>(std::vector<CompletionRequest>{r}, *tokenizer, nullptr, form, bytes);
  }
  static void takeAll(Job &job) {
    std::optional<Job::Piece> piece;
    while (!job.wait(std::chrono::seconds(1), piece)) {
    }
  }

  Workplace w;
  std::optional<Tokenizer> tokenizer;
  std::optional<Session> session;
};

// However many wait, a client's thread has one, and all others can be dropped.
TEST_F(EngineTest, OfASlowClientsAnswerOnePieceIsKept) {
  // A little more than all of the slow one's answer, of 100 samples of 10 letters; later others fill it.
  ByteBudget bytes(1200 * int64_t(sizeof(Job::Piece) + 1));
  ByteBudget::Share others(bytes);
  Engine engine(session->executor, {}, 200, bytes, nullptr);
  const auto slow = job(100, 10, Job::Pieces::text, bytes), next = job(1, 10, Job::Pieces::none, bytes);
  ASSERT_TRUE(engine.submit(slow));
  std::optional<Job::Piece> first, rest;
  while (!first) {
    ASSERT_FALSE(slow->wait(std::chrono::seconds(1), first));
  }
  others.add(bytes.limit());
  // Choices begin in the order of their jobs: before the next ends, most of the slow one's are made, or dropped.
  ASSERT_TRUE(engine.submit(next));
  takeAll(*next);
  EXPECT_EQ(next->failure(), nullptr);
  EXPECT_EQ(bytes.held(), others.held() + first->held.held());
  EXPECT_TRUE(slow->wait(std::chrono::seconds(0), rest));
  EXPECT_FALSE(rest.has_value());
  EXPECT_NE(slow->failure(), nullptr);
}

// Buffers that others fill: each answer is dropped unless its client is quick, and never once it has all.
TEST_F(EngineTest, WhoHasAllOfAnAnswerIsToldOfNoFailure) {
  ByteBudget bytes(1);
  ByteBudget::Share others(bytes);
  others.add(2);
  Engine engine(session->executor, {}, 200, bytes, nullptr);
  for (int i = 0; i < 200; ++i) {
    const auto quick = job(1, 1 + i % 3, Job::Pieces::text, bytes);
    ASSERT_TRUE(engine.submit(quick));
    bool hasAll = false;
    std::optional<Job::Piece> piece;
    while (!quick->wait(std::chrono::seconds(1), piece))
      hasAll |= piece && piece->finishReason;
    EXPECT_EQ(hasAll, quick->failure() == nullptr) << i;
  }
}

}  // namespace
