#include "runtime/collectives/background.h"

#include "runtime/launch/pulse.h"

namespace gptc {

Background::Background(Communicator &ranks) : ranks(ranks), thread([this] { loop(); }) {}

Background::~Background() {
  {
    std::lock_guard lock(mutex);
    stop = true;
  }
  changed.notify_all();
  thread.join();
}

int64_t Background::start(llvm::ArrayRef<Collective> calls, SumOrder order) {
  std::lock_guard lock(mutex);
  if (!failure)
    todo.push_back({calls.vec(), order});
  changed.notify_all();
  return ++started;
}

void Background::wait(int64_t number) {
  std::unique_lock lock(mutex);
  if (ended < number && !failure) {
    const Pulse::Awaits awaits;
    const auto begin = std::chrono::steady_clock::now();
    changed.wait(lock, [&] { return ended >= number || failure; });
    ranks.waited(std::chrono::steady_clock::now() - begin);
  }
  if (failure)
    std::rethrow_exception(failure);
}

void Background::loop() {
  const Pulse::Beside beside;
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stop || !todo.empty(); });
    if (stop)
      return;
    const Bucket bucket = std::move(todo.front());
    todo.pop_front();
    lock.unlock();
    std::exception_ptr thrown;
    try {
      ranks.runBeside(bucket.calls, bucket.order);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    if (thrown) {
      failure = thrown;
      todo.clear();
    } else {
      ++ended;
    }
    changed.notify_all();
  }
}

}  // namespace gptc
