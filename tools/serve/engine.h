// The samples of many clients, by one generator in a thread of its own.
#pragma once

#include "runtime/serve/generator.h"
#include "tools/serve/byte_budget.h"
#include "tools/serve/completion.h"
#include "tools/serve/followers.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace gptc {

/// What one client asks for, a request for each prompt, and what has come of it. Of n samples of each prompt, sample s
/// of prompt p is choice p * n + s. The client's thread waits for what the engine's thread adds.
class Job {
public:
  using Clock = std::chrono::steady_clock;

  /// The pieces that are made: none, or with log-probabilities in the form of one of OpenAI's completions.
  enum class Pieces { none, text, chat };
  /// All requests have the same `n`. `names` are needed for log-probabilities. They and `bytes`, of which pieces are a
  /// part, must outlive this.
  Job(std::vector<CompletionRequest> requests, const Tokenizer &tokenizer, const TokenNames *names, Pieces form,
      ByteBudget &bytes);

  int64_t choices() const { return int64_t(samples.size()); }
  int64_t promptTokens() const;

  /// A part of a choice.
  struct Piece {
    int64_t choice = 0;
    std::string text;
    nlohmann::json logProbs;             // of its tokens; null if not asked for
    const char *finishReason = nullptr;  // of the last one
    ByteBudget::Share held;              // for it
  };
  /// Waits so long, or until there is a piece, which it takes, or until it has ended and none is left: then it returns
  /// true. One at a time: what is not taken is counted, and dropped if there is too much of it.
  bool wait(std::chrono::milliseconds time, std::optional<Piece> &taken);
  /// The client has gone: what is left is dropped.
  void cancel() { cancelled = true; }
  /// Once wait() has returned true: why before its time, for people; null if it did not. It changes no more.
  const char *failure() const { return whyFailed; }

  /// Once it has ended.
  const Completion &completion(int64_t choice) const { return *samples[size_t(choice)].completion; }
  int64_t generatedTokens() const;
  /// Seconds from its making to the first token; negative if there is none.
  double secondsToFirstToken() const { return toFirst; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - made).count(); }

private:
  friend class Engine;
  struct Sample {
    const CompletionRequest *request = nullptr;
    std::unique_ptr<Completion> completion;
    int64_t number = -1;          // of all samples of the engine; -1: it has not begun
    bool dropped = false;         // since before a step; the engine's thread alone knows it
    size_t said = 0, listed = 0;  // of its text and tokens, what pieces have
  };
  Generation generation(const std::shared_ptr<Job> &self, int64_t choice, int64_t number);
  void drop(std::vector<int64_t> &numbers);
  bool add(Sample &sample, int64_t choice, int32_t token, const TokenScores *scores);
  void end(Sample &sample, int64_t choice);
  void push(Sample &sample, int64_t choice);
  int64_t bytesUntaken();
  void fail();
  void dropAnswer();

  const std::vector<CompletionRequest> requests;
  const Tokenizer tokenizer;
  const Pieces form;
  ByteBudget &bytes;
  const Clock::time_point made = Clock::now();
  std::vector<Sample> samples;
  std::atomic<bool> cancelled = false;
  std::atomic<int64_t> *tokensMade = nullptr;  // of all jobs
  int64_t started = 0;                         // samples that the generator has or had

  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::deque<Piece> pieces;  // that are not taken
  int64_t ended = 0;
  const char *whyFailed = nullptr;
  double toFirst = -1;
};

class Engine {
public:
  /// `mostWaiting`: choices that may wait for a slot. `bytes`: of which pieces of jobs are a part; once they are more
  /// than it has, the job whose client has left most of them ends. `onFailure` is called from the engine's thread when
  /// it cannot go on. `ranks`: if this is rank 0 of several that share the model; the others call followEngine.
  Engine(Executor &executor, const GeneratorOptions &options, int64_t mostWaiting, const ByteBudget &bytes,
         std::function<void()> onFailure, Communicator *ranks = nullptr);
  ~Engine() { end(); }
  Engine(const Engine &) = delete;

  /// Jobs that have not ended fail, and no more are taken.
  void end();
  /// False if too many choices wait already.
  bool submit(const std::shared_ptr<Job> &job);
  int64_t mostWaiting() const { return limit; }
  /// Whether so many choices more may wait now.
  bool hasRoom(int64_t choices) const { return waitingChoices + choices <= limit; }

  int64_t slots() const { return slotCount; }
  int64_t waiting() const { return waitingChoices; }
  int64_t running() const { return runningChoices; }
  int64_t generatedTokens() const { return tokensMade; }
  /// Throws what ended the engine, if something did.
  void rethrow() const;

private:
  void run();
  void fill(Orders &orders);
  void endSlowest();
  void failAll();

  Generator generator;
  Communicator *const ranks;
  const int64_t limit, slotCount;
  const ByteBudget &bytes;
  const std::function<void()> onFailure;
  std::atomic<int64_t> waitingChoices = 0, runningChoices = 0, tokensMade = 0;

  mutable std::mutex mutex;  // of what follows
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> queue;    // those with choices to start
  std::list<std::weak_ptr<Job>> unfinished;  // all that have not ended
  int64_t begun = 0;                         // samples
  bool isEnding = false;
  std::exception_ptr failure;

  std::thread thread;
};

}  // namespace gptc
