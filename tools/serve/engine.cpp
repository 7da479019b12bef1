#include "tools/serve/engine.h"

#include "runtime/collectives/share_text.h"
#include "support/diagnostics.h"
#include "tools/serve/sample_output.h"

#include <numeric>
#include <utility>

namespace gptc {

/// About so much memory a log-probability of a piece takes, with its token's name.
constexpr int64_t kBytesOfScore = 100;

Job::Job(std::vector<CompletionRequest> all, const Tokenizer &tokenizer, const TokenNames *names, Pieces form,
         ByteBudget &bytes)
    : requests(std::move(all)), tokenizer(tokenizer), form(form), bytes(bytes) {
  for (const CompletionRequest &r : requests)
    for (int64_t i = 0; i < r.n; ++i)
      samples.push_back({&r, std::make_unique<Completion>(r, this->tokenizer, names)});
}

int64_t Job::promptTokens() const {
  return std::accumulate(requests.begin(), requests.end(), int64_t(0),
                         [](int64_t n, const CompletionRequest &r) { return n + int64_t(r.prompt.size()); });
}

int64_t Job::generatedTokens() const {
  return std::accumulate(samples.begin(), samples.end(), int64_t(0),
                         [](int64_t n, const Sample &s) { return n + s.completion->tokens(); });
}

bool Job::wait(std::chrono::milliseconds time, std::optional<Piece> &taken) {
  taken.reset();
  std::unique_lock lock(mutex);
  changed.wait_for(lock, time, [&] { return whyFailed || ended == choices() || !pieces.empty(); });
  if (pieces.empty())
    return whyFailed || ended == choices();
  taken.emplace(std::move(pieces.front()));
  pieces.pop_front();
  return false;
}

Generation Job::generation(const std::shared_ptr<Job> &self, int64_t choice, int64_t number) {
  Sample &sample = samples[size_t(choice)];
  sample.number = number;
  const CompletionRequest &r = *sample.request;
  Generation g = generationOf(r, uint64_t(choice % r.n));
  if (r.echo && r.logProbs)
    g.onPrompt = [&sample](const std::vector<TokenScores> &scores) { sample.completion->prompt(scores); };
  g.onToken = [self, &sample, choice](int32_t token, const TokenScores *scores) {
    return self->add(sample, choice, token, scores);
  };
  g.onEnd = [self, &sample, choice] { self->end(sample, choice); };
  g.isWanted = [self, &sample] { return !sample.dropped; };
  return g;
}

/// If the client has gone, drops the samples that have begun, and adds their numbers.
void Job::drop(std::vector<int64_t> &numbers) {
  if (!cancelled)
    return;
  for (Sample &s : samples)
    if (s.number >= 0 && !std::exchange(s.dropped, true))
      numbers.push_back(s.number);
}

bool Job::add(Sample &sample, int64_t choice, int32_t token, const TokenScores *scores) {
  ++*tokensMade;
  const bool goesOn = sample.completion->token(token, scores);
  const std::lock_guard lock(mutex);
  if (toFirst < 0)
    toFirst = std::chrono::duration<double>(Clock::now() - made).count();
  if (form != Pieces::none && goesOn)
    push(sample, choice);
  return goesOn;
}

void Job::end(Sample &sample, int64_t choice) {
  sample.completion->end();
  const std::lock_guard lock(mutex);
  if (form != Pieces::none)
    push(sample, choice);
  if (++ended == choices())
    changed.notify_all();
}

/// Adds what the sample has more than its pieces; `mutex` is held.
void Job::push(Sample &sample, int64_t choice) {
  const Completion &c = *sample.completion;
  if (whyFailed || (c.text().size() == sample.said && c.listedTokens() == sample.listed && !c.ended()))
    return;
  ByteBudget::Share held(bytes);
  held.add(int64_t(sizeof(Piece) + c.text().size() - sample.said) +
           int64_t(c.listedTokens() - sample.listed) * (1 + sample.request->logProbs.value_or(0)) * kBytesOfScore);
  pieces.push_back({choice, c.text().substr(sample.said),
                    form == Pieces::chat ? c.chatLogProbabilities(sample.listed) : c.logProbabilities(sample.listed),
                    c.finishReason(), std::move(held)});
  sample.said = c.text().size();
  sample.listed = c.listedTokens();
  changed.notify_all();
}

/// Of pieces that wait for the client's thread.
int64_t Job::bytesUntaken() {
  const std::lock_guard lock(mutex);
  return std::accumulate(pieces.begin(), pieces.end(), int64_t(0),
                         [](int64_t n, const Piece &p) { return n + p.held.held(); });
}

/// The engine ends.
void Job::fail() {
  const std::lock_guard lock(mutex);
  if (ended < choices() && !whyFailed)
    whyFailed = "the server ended before the request did";
  changed.notify_all();
}

/// Its client is too slow: the rest of its answer is neither kept nor made. Unless it has taken all meanwhile: then the
/// answer may have ended, and that is not to be taken back.
void Job::dropAnswer() {
  const std::lock_guard lock(mutex);
  if (pieces.empty())
    return;
  pieces.clear();
  whyFailed = "the answer was not taken fast enough, and fills the memory that all clients share";
  cancelled = true;
  changed.notify_all();
}

Engine::Engine(Executor &executor, const GeneratorOptions &options, int64_t mostWaiting, const ByteBudget &bytes,
               std::function<void()> onFailure, Communicator *ranks)
    : generator(executor, options), ranks(ranks), limit(mostWaiting), slotCount(generator.model().slots()),
      bytes(bytes), onFailure(std::move(onFailure)), thread([this] { run(); }) {}

void Engine::end() {
  {
    const std::lock_guard lock(mutex);
    isEnding = true;
  }
  changed.notify_all();
  if (thread.joinable())
    thread.join();
}

bool Engine::submit(const std::shared_ptr<Job> &job) {
  {
    const std::lock_guard lock(mutex);
    if (isEnding || failure || waitingChoices + job->choices() > limit)
      return false;
    waitingChoices += job->choices();
    job->tokensMade = &tokensMade;
    queue.push_back(job);
    unfinished.remove_if([](const std::weak_ptr<Job> &j) { return j.expired(); });
    unfinished.push_back(job);
  }
  changed.notify_all();
  return true;
}

void Engine::rethrow() const {
  const std::lock_guard lock(mutex);
  if (failure)
    std::rethrow_exception(failure);
}

void Engine::run() {
  try {
    for (;;) {
      Orders orders;
      {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, kBetweenSigns, [&] { return isEnding || !queue.empty() || generator.unfinished() > 0; });
        orders.ends = isEnding;
        orders.taken = generator.taken();
        if (!orders.ends)
          fill(orders);
      }
      if (ranks)
        shareText(*ranks, orders.bytes());
      if (orders.ends)
        break;
      generator.step();
      runningChoices = generator.unfinished();
      endSlowest();
    }
  } catch (...) {
    const std::lock_guard lock(mutex);
    failure = std::current_exception();
  }
  failAll();
  if (failure && onFailure)
    onFailure();
}

/// Gives the generator as many choices as it has slots, and as many again to choose from, and drops those that nobody
/// wants; `mutex` is held.
void Engine::fill(Orders &orders) {
  while (!queue.empty() && generator.unfinished() < 2 * slotCount) {
    const std::shared_ptr<Job> job = queue.front();
    const int64_t choice = job->started++;
    --waitingChoices;
    if (job->started == job->choices())
      queue.pop_front();
    generator.add(job->generation(job, choice, begun));
    if (ranks) {
      const CompletionRequest &r = *job->samples[size_t(choice)].request;
      orders.begun.push_back({begun, uint64_t(choice % r.n), r});
    }
    ++begun;
  }
  for (const std::weak_ptr<Job> &weak : unfinished)
    if (const std::shared_ptr<Job> job = weak.lock())
      job->drop(orders.dropped);
}

/// Pieces are made whether there is room for them or not. While there is none, the answer of which most waits is
/// dropped, if that is more than an equal part of the budget: else it is not streams that fill it.
void Engine::endSlowest() {
  if (bytes.held() <= bytes.limit())
    return;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Job> slowest;
  int64_t most = 0, jobs = 0;
  for (const std::weak_ptr<Job> &weak : unfinished)
    if (const std::shared_ptr<Job> job = weak.lock()) {
      ++jobs;
      if (const int64_t untaken = job->bytesUntaken(); untaken > most) {
        most = untaken;
        slowest = job;
      }
    }
  if (slowest && most > bytes.limit() / jobs)
    slowest->dropAnswer();
}

void Engine::failAll() {
  const std::lock_guard lock(mutex);
  for (const std::weak_ptr<Job> &weak : unfinished)
    if (const std::shared_ptr<Job> job = weak.lock())
      job->fail();
}

}  // namespace gptc
