// all_reduce between ranks of this machine: our tree and our fast order beside Gloo's own algorithm (a ring over the
// same connections' kind), in turn. A rate is the bytes of the buffer by the time of the slowest call.
//
//   build/release/bin/collectives_bench [ranks [rounds [MiB ...]]]
#include "runtime/collectives/communicator.h"
#include "runtime/rendezvous/rendezvous.h"
#include "support/diagnostics.h"
#include "support/median.h"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <cstdio>
#include <sys/wait.h>
#include <unistd.h>

using namespace gptc;
using Clock = std::chrono::steady_clock;

namespace {

class Store : public gloo::rendezvous::Store {
public:
  explicit Store(RendezvousClient &c) : c(c) {}
  void set(const std::string &key, const std::vector<char> &v) override {
    c.set("gloo/" + key, llvm::StringRef(v.data(), v.size()));
  }
  std::vector<char> get(const std::string &key) override {
    const std::string v = c.get("gloo/" + key, std::chrono::seconds(30));
    return {v.begin(), v.end()};
  }
  void wait(const std::vector<std::string> &keys) override {
    for (const std::string &key : keys)
      get(key);
  }

private:
  RendezvousClient &c;
};

struct Request {
  int ranks = 2, rounds = 15;
  std::vector<size_t> mib = {4, 64};
};

void rank(const Request &r, int rank, uint16_t port, const std::string &token) {
  RendezvousClient client({"127.0.0.1", port, token, rank, r.ranks});
  auto ours = joinGroup(&client, Group::all(r.ranks), {.tcp = true});
  auto shared = joinGroup(&client, {"shared", Group::all(r.ranks).members}, {});
  gloo::transport::tcp::attr attr("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attr);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, r.ranks);
  Store store(client);
  context->connectFullMesh(store, device);
  for (size_t mib : r.mib) {
    const size_t n = mib << 18;
    std::vector<float> x(n, 1), y(n);
    auto time = [&](auto f) {
      ours->barrier();
      const auto begin = Clock::now();
      f();
      float mine = std::chrono::duration<float>(Clock::now() - begin).count();
      std::vector<float> all(static_cast<size_t>(r.ranks));
      ours->run({{Collective::Kind::all_gather, &mine, all.data(), 1, DType::f32}}, SumOrder::fast);
      return double(*std::max_element(all.begin(), all.end()));
    };
    auto by = [&](Communicator &c, SumOrder order) {
      c.run({{Collective::Kind::all_reduce, x.data(), y.data(), n, DType::f32}}, order);
    };
    auto peer = [&] {
      gloo::AllreduceOptions o(context);
      o.setInput(x.data(), n);
      o.setOutput(y.data(), n);
      o.setReduceFunction(
          [](void *to, const void *a, const void *b, size_t count) { gloo::sum<float>(to, a, b, count); });
      gloo::allreduce(o);
    };
    std::vector<double> tree, fast, ring, memory, toFast, toRing;
    for (int round = -2; round < r.rounds; ++round) {
      // Whoever comes first finds other caches than who follows: they take turns.
      auto byTree = [&] { by(*ours, SumOrder::tree); };
      auto byFast = [&] { by(*ours, SumOrder::fast); };
      double t = 0, f = 0;
      if (round % 2)
        f = time(byFast), t = time(byTree);
      else
        t = time(byTree), f = time(byFast);
      const double g = time(peer), m = time([&] { by(*shared, SumOrder::tree); });
      if (round < 0)
        continue;
      tree.push_back(t);
      fast.push_back(f);
      ring.push_back(g);
      memory.push_back(m);
      toFast.push_back(t / f);
      toRing.push_back(t / g);
    }
    const double gb = double(n) * 4e-9;
    auto spread = [](std::vector<double> v) {
      return fmt::format("{:.2f} ({:.2f}..{:.2f})", medianOf(v), *std::min_element(v.begin(), v.end()),
                         *std::max_element(v.begin(), v.end()));
    };
    if (rank == 0)
      fmt::print(
          "{} ranks, {} MiB: tree {:.2f} GB/s, fast {:.2f}, Gloo's own {:.2f}, shared memory {:.2f}; time of tree by "
          "fast {}, by Gloo's {}\n",
          r.ranks, mib, gb / medianOf(tree), gb / medianOf(fast), gb / medianOf(ring), gb / medianOf(memory),
          spread(toFast), spread(toRing));
  }
  shared->finish();
  ours->finish();
  client.leave();
}

}  // namespace

int main(int argc, char **argv) {
  Request r;
  if (argc > 1)
    r.ranks = std::atoi(argv[1]);
  if (argc > 2)
    r.rounds = std::atoi(argv[2]);
  if (argc > 3)
    r.mib.clear();
  for (int i = 3; i < argc; ++i)
    r.mib.push_back(size_t(std::atoi(argv[i])));
  // Ranks are forked before there is any thread, and hear of the rendezvous by a pipe.
  const std::string token = newToken();
  int pipes[2];
  if (pipe(pipes) != 0)
    return 1;
  for (int i = 0; i < r.ranks; ++i)
    if (fork() == 0) {
      uint16_t port = 0;
      if (read(pipes[0], &port, sizeof port) != sizeof port)
        _exit(1);
      try {
        rank(r, i, port, token);
      } catch (const std::exception &e) {
        fmt::print(stderr, "{}", e.what());
        _exit(1);
      }
      std::fflush(stdout);
      _exit(0);
    }
  const RendezvousServer server({.token = token, .world = r.ranks});
  for (int i = 0; i < r.ranks; ++i) {
    const uint16_t port = server.port();
    if (write(pipes[1], &port, sizeof port) != sizeof port)
      return 1;
  }
  int failed = 0;
  for (int i = 0, status; i < r.ranks; ++i)
    failed |= wait(&status) < 0 || status != 0;
  return failed;
}
