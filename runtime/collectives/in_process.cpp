#include "runtime/collectives/in_process.h"
#include "runtime/collectives/signature.h"
#include "runtime/collectives/sum.h"
#include "runtime/rendezvous/rendezvous.h"
#include "support/diagnostics.h"

#include <condition_variable>
#include <cstring>
#include <mutex>

namespace gptc {

struct InProcess::Shared {
  Shared(Group g, std::chrono::milliseconds timeout)
      : group(std::move(g)), world(int(group.members.size())), timeout(timeout), calls(size_t(world)),
        signatures(size_t(world)), met(size_t(world), 0) {}
  const Group group;
  const int world;
  const std::chrono::milliseconds timeout;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<llvm::ArrayRef<Collective>> calls;  // of each rank, for the running collective
  std::vector<std::vector<CallSignature>> signatures;
  std::vector<int64_t> met;  // how many synchronisation points each rank has reached
  int reading = 0;           // ranks that read others' memory; a failing rank must wait for them
  std::optional<RankFailure> failure;
};

namespace {

using Bytes = std::vector<char>;

/// The sum of `n` elements at `offset` over ranks [begin, end).
Bytes sumOf(llvm::ArrayRef<Collective> of, size_t offset, size_t n, SumOrder order, size_t begin, size_t end) {
  const DType t = of[begin].dtype;
  if (end - begin == 1) {
    const char *at = static_cast<const char *>(of[begin].from) + offset * sizeOf(t);
    return Bytes(at, at + n * sizeOf(t));
  }
  // As a tree of halves, or one rank after the other.
  const size_t middle = order == SumOrder::tree ? begin + (end - begin) / 2 : end - 1;
  Bytes left = sumOf(of, offset, n, order, begin, middle);
  const Bytes right = sumOf(of, offset, n, order, middle, end);
  addElements(t, left.data(), left.data(), right.data(), n);
  return left;
}

/// The result for `rank`. `of`: this collective as each rank calls it.
Bytes resultOf(llvm::ArrayRef<Collective> of, size_t rank, SumOrder order) {
  const Collective &c = of[rank];
  const size_t bytes = c.count * sizeOf(c.dtype), world = of.size();
  auto copy = [&](size_t r) {
    const char *at = static_cast<const char *>(of[r].from);
    return Bytes(at, at + bytes);
  };
  switch (c.kind) {
  case Collective::Kind::all_reduce:
    return sumOf(of, 0, c.count, order, 0, world);
  case Collective::Kind::reduce_scatter:
    return sumOf(of, rank * c.count, c.count, order, 0, world);
  case Collective::Kind::broadcast:
    return copy(size_t(c.root));
  case Collective::Kind::all_gather: {
    Bytes all;
    for (size_t r = 0; r < world; ++r) {
      const Bytes part = copy(r);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }
  }
  GPTC_UNREACHABLE("collective {}", int(c.kind));
}

class OfThread final : public Communicator {
public:
  OfThread(std::shared_ptr<InProcess::Shared> s, int rank) : Communicator(s->group, rank), s(std::move(s)) {}
  bool beside() const override { return true; }  // for tests
  ~OfThread() override {
    std::lock_guard lock(s->mutex);
    if (!ended && !s->failure)
      s->failure = {rank, ErrorCode::RankFailed, fmt::format("rank {} is gone: its communicator has ended", rank)};
    s->changed.notify_all();
  }

private:
  const std::shared_ptr<InProcess::Shared> s;
  bool ended = false;
  std::string doing;

  std::string who() const {
    return fmt::format("rank {} of {} on {}, group {}, {}", rank, world, hostName(), group.name, doing);
  }
  [[noreturn]] void fail(ErrorCode code, const std::string &text, const char *help) {
    if (!s->failure)
      s->failure = {rank, code, text};
    s->changed.notify_all();
    throw UserError(code, text, help);
  }

  /// Waits for all ranks.
  void all(std::unique_lock<std::mutex> &lock) {
    const int64_t mine = ++s->met[size_t(rank)];
    s->changed.notify_all();
    auto late = [&] {
      for (int r = 0; r < world; ++r)
        if (s->met[size_t(r)] < mine)
          return r;
      return -1;
    };
    s->changed.wait_for(lock, s->timeout, [&] { return late() < 0 || s->failure; });
    if (late() >= 0 || s->failure)
      s->changed.wait(lock, [&] { return s->reading == 0; });
    if (late() < 0 && !s->failure)
      return;
    if (s->failure)
      throw UserError(s->failure->code, fmt::format("{}: cannot go on: {}", who(), s->failure->text),
                      "the first rank that failed is the cause: see what it says");
    fail(ErrorCode::CollectiveTimeout,
         fmt::format("{}: rank {} on {} did not come in {:.1f} s", who(), late(), hostName(), s->timeout.count() / 1e3),
         "that rank is dead, stopped or stuck, or does less than this one");
  }

  void perform(llvm::ArrayRef<Collective> calls, SumOrder order) override {
    doing = what(calls);
    std::unique_lock lock(s->mutex);
    const size_t me = size_t(rank);
    s->calls[me] = calls;
    s->signatures[me] = signatureOf(calls, order);
    all(lock);
    for (int r = 0; r < world; ++r)
      if (s->signatures[size_t(r)] != s->signatures[me])
        fail(ErrorCode::CollectiveMismatch,
             fmt::format("{}: {}", who(), differenceOf(rank, s->signatures[me], r, s->signatures[size_t(r)])),
             "all ranks must run the same plan: start them by one gptrun");
    // No rank writes before all have read, because a result may overwrite an argument.
    std::vector<Bytes> results;
    ++s->reading;
    lock.unlock();
    for (size_t i = 0; i < calls.size(); ++i) {
      std::vector<Collective> of;
      for (const auto &theirs : s->calls)
        of.push_back(theirs[i]);
      results.push_back(resultOf(of, me, order));
    }
    lock.lock();
    --s->reading;
    s->changed.notify_all();
    all(lock);
    for (size_t i = 0; i < calls.size(); ++i)
      if (!results[i].empty())
        std::memcpy(calls[i].to, results[i].data(), results[i].size());
  }
  void meet() override { perform({}, SumOrder::fast); }
  void end() override {
    meet();
    std::lock_guard lock(s->mutex);
    ended = true;
  }
};

}  // namespace

InProcess::InProcess(int world, std::chrono::milliseconds timeout) : InProcess(Group::all(world), timeout) {}
InProcess::InProcess(Group group, std::chrono::milliseconds timeout)
    : shared(std::make_shared<Shared>(std::move(group), timeout)) {}
InProcess::~InProcess() = default;

std::unique_ptr<Communicator> InProcess::join(int rank) { return std::make_unique<OfThread>(shared, rank); }

}  // namespace gptc
