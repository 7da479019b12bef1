// Measures collectives between ranks that share this machine's memory.
#include "runtime/collectives/communicator.h"
#include "runtime/device/executor.h"
#include "runtime/rendezvous/rendezvous.h"
#include "support/diagnostics.h"
#include "tools/commands/bench_cluster.h"
#include "tools/study/step_runner.h"

#include <exception>
#include <thread>

namespace gptc {

namespace {

/// Seconds of an all_reduce of `n` floats, for `rounds` rounds after an uncounted one.
std::vector<double> timesOf(Communicator &c, size_t n, int rounds) {
  std::vector<float> x(n, 1.f), y(n);
  std::vector<double> seconds;
  for (int i = -1; i < rounds; ++i) {
    c.barrier();
    const int64_t begin = monotonicNow();
    c.run({{Collective::Kind::all_reduce, x.data(), y.data(), n, DType::f32}}, SumOrder::tree);
    if (i >= 0)
      seconds.push_back(1e-9 * double(monotonicNow() - begin));
  }
  return seconds;
}

}  // namespace

LinkSpeed measureLinks(int ranks) {
  constexpr size_t large = size_t(4) << 20;  // floats: larger than caches, like gradients
  LinkSpeed speed;
  const std::string token = newToken();
  RendezvousServer server({.token = token, .world = ranks});
  std::vector<std::exception_ptr> failed(static_cast<size_t>(ranks));
  auto rank = [&](int r) {
    try {
      RendezvousClient client({"127.0.0.1", server.port(), token, r, ranks});
      const std::unique_ptr<Communicator> c = joinGroup(&client, Group::all(ranks), {});
      const double t = spreadOf(timesOf(*c, large, 9)).median;
      const double one = spreadOf(timesOf(*c, 1, 101)).median;
      if (r == 0) {
        speed.bandwidth = 2 * double(ranks - 1) / ranks * double(large * sizeof(float)) / t;
        speed.latency = one;
      }
      c->finish();
      client.leave();
    } catch (...) {
      failed[size_t(r)] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back(rank, r);
  for (std::thread &t : threads)
    t.join();
  for (const std::exception_ptr &e : failed)
    if (e)
      std::rethrow_exception(e);
  return speed;
}

}  // namespace gptc
