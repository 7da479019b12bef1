// Communicators on the stand-in of NCCL: every collective between processes against plain sums, in streams and in
// graphs; ranks that die, stop, never come or do something else; and that the stand-in refuses what NCCL would.
#include "runtime/cuda/nccl.h"

#include "ir/element.h"
#include "standins.h"
#include "support/diagnostics.h"
#include "tests/support/ranks.h"

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

namespace gptc::test {
namespace {

using namespace cuda;
using Kind = NcclCollective::Kind;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

void expect(bool holds, const std::string &what) {
  if (!holds)
    throw std::runtime_error(what + "\n");
}

/// One GPU with memory for tensors.
class Place {
public:
  explicit Place(int device = 0) : gpu(cudaTarget("cuda:sm_90a"), device) {}
  Gpu gpu;

  DevicePtr put(DType t, const std::vector<double> &values) {
    std::vector<std::byte> bytes(values.size() * sizeOf(t));
    for (size_t i = 0; i < values.size(); ++i)
      storeElement(t, bytes.data(), int64_t(i), values[i]);
    memory.push_back(std::make_unique<DeviceMemory>(gpu, bytes.size()));
    gpu.d.check(gpu.d.copyToDevice(memory.back()->at, bytes.data(), bytes.size(), gpu.stream), "put");
    return memory.back()->at;
  }
  DevicePtr space(DType t, size_t n) { return put(t, std::vector<double>(n, 77)); }
  /// Only where nothing waits for other ranks.
  std::vector<double> get(DType t, DevicePtr at, size_t n) {
    std::vector<std::byte> bytes(n * sizeOf(t));
    gpu.d.check(gpu.d.copyToHost(bytes.data(), at, bytes.size(), gpu.stream), "get");
    gpu.wait();
    std::vector<double> values;
    for (size_t i = 0; i < n; ++i)
      values.push_back(loadElement(t, bytes.data(), int64_t(i)));
    return values;
  }
  /// All that the stream was given so far, in time.
  void wait(NcclCommunicator &c, const char *what = "the test") {
    EventHandle e(gpu);
    gpu.d.check(gpu.d.eventRecord(e.event, gpu.stream), "cuEventRecord");
    c.wait(e.event, what);
  }

private:
  std::vector<std::unique_ptr<DeviceMemory>> memory;
};

/// The id that rank 0 makes, through a file.
NcclId meet(const RankPlace &p, const char *name = "id") {
  const fs::path file = fs::path(p.folder) / name;
  NcclId id;
  if (p.rank == 0) {
    id = NcclId::make();
    std::ofstream(file.string() + ".new", std::ios::binary).write(id.bytes.data(), sizeof id);
    fs::rename(file.string() + ".new", file);
  }
  while (!fs::exists(file))
    std::this_thread::sleep_for(milliseconds(1));
  std::ifstream(file, std::ios::binary).read(id.bytes.data(), sizeof id);
  return id;
}

// The second has to last until all ranks have started.
constexpr milliseconds patience(20000), impatience(2000);

double exact(DType t, int rank, size_t i) {
  return double(int64_t((i * 7 + size_t(rank) * 5) % 17) - (t == DType::u32 ? 0 : 8));
}

/// Each collective on numbers whose sums have no rounding, out of place and in place.
void everyCollective(Place &p, NcclCommunicator &c, DType t, size_t n) {
  const int W = c.world;
  auto values = [&](int rank, size_t count) {
    std::vector<double> v(count);
    for (size_t i = 0; i < count; ++i)
      v[i] = exact(t, rank, i);
    return v;
  };
  auto sum = [&](size_t i) {
    double s = 0;
    for (int r = 0; r < W; ++r)
      s += exact(t, r, i);
    return s;
  };
  auto check = [&](NcclCollective call, DevicePtr at, size_t count, auto want) {
    p.wait(c, "a check");
    const std::vector<double> got = p.get(t, at, count);
    for (size_t i = 0; i < count; ++i)
      if (got[i] != want(i))
        expect(false,
               fmt::format("{}, rank {} of {}: element {} is {}, not {}", call.str(), c.rank, W, i, got[i], want(i)));
  };
  auto run = [&](NcclCollective call, DevicePtr at, size_t count, auto want) {
    c.enqueue(call, p.gpu.stream);
    check(call, at, count, want);
  };
  const size_t part = size_t(c.rank) * n;
  for (bool inPlace : {false, true}) {
    if (t != DType::pred) {
      DevicePtr x = p.put(t, values(c.rank, n)), y = inPlace ? x : p.space(t, n);
      run({Kind::all_reduce, x, y, n, t}, y, n, sum);
      x = p.put(t, values(c.rank, n * W)), y = inPlace ? x + part * sizeOf(t) : p.space(t, n);
      run({Kind::reduce_scatter, x, y, n, t}, y, n, [&](size_t i) { return sum(part + i); });
    }
    auto of = [&](int rank, size_t i) { return t == DType::pred ? double(exact(t, rank, i) > 0) : exact(t, rank, i); };
    std::vector<double> own(n);
    for (size_t i = 0; i < n; ++i)
      own[i] = of(c.rank, i);
    DevicePtr y = p.space(t, n * W), x = p.put(t, own);
    if (inPlace) {
      std::vector<double> all(n * W, 1);
      std::copy(own.begin(), own.end(), all.begin() + part);
      y = p.put(t, all), x = y + part * sizeOf(t);
    }
    run({Kind::all_gather, x, y, n, t}, y, n * W, [&](size_t i) { return of(int(i / n), i % n); });
    for (int root = 0; root < W; ++root) {
      x = p.put(t, own), y = inPlace ? x : p.space(t, n);
      run({Kind::broadcast, x, y, n, t, root}, y, n, [&](size_t i) { return of(root, i); });
    }
  }
}

void collectives(const RankPlace &at) {
  Place p(at.rank);
  NcclCommunicator c(p.gpu, meet(at), at.rank, at.world, patience);
  for (DType t : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u32, DType::pred})
    for (size_t n : {1, 37})
      everyCollective(p, c, t, n);
  everyCollective(p, c, DType::f32, 100000);

  // Rounded: near the sum in any order, the same bits everywhere.
  const size_t n = 1000;
  std::vector<double> x(n);
  for (DType t : {DType::f32, DType::bf16}) {
    for (size_t i = 0; i < n; ++i)
      x[i] = roundTo(t, std::sin(double(i + 1) * (at.rank + 1)));
    const DevicePtr y = p.put(t, x);
    c.enqueue(NcclCollective{Kind::all_reduce, y, y, n, t}, p.gpu.stream);
    p.wait(c);
    const std::vector<double> got = p.get(t, y, n);
    for (size_t i = 0; i < n; ++i) {
      double sum = 0, size = 0;
      for (int r = 0; r < at.world; ++r) {
        const double v = roundTo(t, std::sin(double(i + 1) * (r + 1)));
        sum += v, size += std::fabs(v);
      }
      // Each addition rounds by at most half a unit of a partial sum, which is at most the sum of sizes and its errors.
      const double u = t == DType::f32 ? 0x1p-24 : 0x1p-8, most = (std::pow(1 + u, at.world - 1) - 1) * size;
      expect(std::fabs(got[i] - sum) <= most, fmt::format("element {} is {}, not {} +- {}", i, got[i], sum, most));
      std::printf("%a ", got[i]);
    }
  }
  c.finish();
}
const RankScenarioAdded added1("collectives", collectives);

/// Several in one call: all read before any writes, so that a result can be none's input.
void groups(const RankPlace &at) {
  Place p(at.rank);
  const NcclId id = meet(at), second = meet(at, "second");
  NcclCommunicator c(p.gpu, id, at.rank, at.world, patience);
  // Of one GPU in the same process, with another number of ranks: an axis of a mesh that is 1 long, and one that is
  // not.
  NcclCommunicator other(p.gpu, second, at.rank, at.world, patience), alone(p.gpu, NcclId::make(), 0, 1, patience);
  const double r = at.rank + 1, all = at.world * (at.world + 1) / 2.;
  const DevicePtr x = p.put(DType::f32, {r, 2 * r}), y = p.space(DType::f32, 2), i = p.put(DType::i64, {r}),
                  g = p.space(DType::i64, at.world);
  c.enqueue({{Kind::all_reduce, x, y, 2, DType::f32},
             {Kind::all_gather, i, g, 1, DType::i64},
             {Kind::broadcast, x, x, 1, DType::f32, at.world - 1}},
            p.gpu.stream);
  alone.enqueue(NcclCollective{Kind::all_reduce, y, y, 2, DType::f32}, p.gpu.stream);
  other.enqueue(NcclCollective{Kind::all_reduce, y, y, 2, DType::f32}, p.gpu.stream);
  p.wait(other);
  expect(p.get(DType::f32, x, 2) == std::vector<double>{double(at.world), 2 * r}, "broadcast");
  expect(p.get(DType::f32, y, 2) == std::vector<double>{at.world * all, 2 * at.world * all}, "all_reduce");
  std::vector<double> gathered;
  for (int k = 1; k <= at.world; ++k)
    gathered.push_back(k);
  expect(p.get(DType::i64, g, at.world) == gathered, "all_gather");
  expect(c.enqueued() == 1 && other.enqueued() == 1, "enqueued");
  for (NcclCommunicator *each : {&alone, &c, &other})
    each->finish();
}
const RankScenarioAdded added2("groups", groups);

/// Parts to each rank and from each, of which some go to all alike, between memory with and without gaps; several in
/// one call.
void exchanges(const RankPlace &at) {
  Place p(at.rank);
  NcclCommunicator c(p.gpu, meet(at), at.rank, at.world, patience);
  const int W = at.world;
  auto mine = [](int rank, int to, int i) { return 100. * rank + 10. * to + i; };
  // Two segments, each with a part of three elements for every rank; and what all get.
  std::vector<double> x, same = {at.rank + 0.5};
  for (int s = 0; s < 2; ++s)
    for (int to = 0; to < W; ++to)
      for (int i = 0; i < 3; ++i)
        x.push_back(mine(at.rank, to, 3 * s + i));
  const DevicePtr from = p.put(DType::f32, x), met = p.space(DType::f32, size_t(6 * W)), one = p.put(DType::bf16, same),
                  all = p.space(DType::bf16, size_t(W));
  const size_t n = 3, size = sizeof(float);
  c.exchange({{from, met, n, n, 2 * n, DType::f32},
              {from + size_t(W) * n * size, met + n * size, n, n, 2 * n, DType::f32},
              {one, all, 1, 0, 1, DType::bf16}},
             p.gpu.stream);
  p.wait(c);
  std::vector<double> want, wantAll;
  for (int r = 0; r < W; ++r) {
    for (int i = 0; i < 6; ++i)
      want.push_back(mine(r, at.rank, i));
    wantAll.push_back(r + 0.5);
  }
  expect(p.get(DType::f32, met, want.size()) == want, "parts of all ranks");
  expect(p.get(DType::bf16, all, wantAll.size()) == wantAll, "one from each");
  c.finish();
}
const RankScenarioAdded added12("exchanges", exchanges);

/// A graph that is launched several times, the host waiting only at the end; and two streams, which one communicator
/// brings into the order of the calls.
void graphs(const RankPlace &at) {
  Place p(at.rank);
  const Driver &d = p.gpu.d;
  NcclCommunicator c(p.gpu, meet(at), at.rank, at.world, patience);
  const DevicePtr x = p.put(DType::f32, {at.rank + 1., 1}), part = p.space(DType::f32, 1);
  Stream side = nullptr;
  d.check(d.streamCreate(&side, streamNonBlocking), "cuStreamCreate");
  EventHandle fork(p.gpu), join(p.gpu);
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  d.check(d.streamBeginCapture(p.gpu.stream, captureThreadLocal), "cuStreamBeginCapture");
  d.check(d.eventRecord(fork.event, p.gpu.stream), "cuEventRecord");
  d.check(d.streamWaitEvent(side, fork.event, 0), "cuStreamWaitEvent");
  c.enqueue(NcclCollective{Kind::all_reduce, x, x, 2, DType::f32}, p.gpu.stream);
  c.enqueue(NcclCollective{Kind::broadcast, x, part, 1, DType::f32, 0}, side);
  d.check(d.eventRecord(join.event, side), "cuEventRecord");
  d.check(d.streamWaitEvent(p.gpu.stream, join.event, 0), "cuStreamWaitEvent");
  d.check(d.streamEndCapture(p.gpu.stream, &graph), "cuStreamEndCapture");
  d.check(d.graphInstantiate(&exec, graph, 0), "cuGraphInstantiate");
  d.check(d.graphDestroy(graph), "cuGraphDestroy");
  constexpr int launches = 3;
  for (int i = 0; i < launches; ++i)
    d.check(d.graphLaunch(exec, p.gpu.stream), "cuGraphLaunch");
  // And behind them in the stream, one that is in no graph.
  c.enqueue(NcclCollective{Kind::all_reduce, x, x, 2, DType::f32}, p.gpu.stream);
  p.wait(c);
  const double W = at.world, first = W * (W + 1) / 2 * W * W;
  expect(p.get(DType::f32, x, 2) == std::vector<double>{first * W, W * W * W * W}, "three launches and one more");
  expect(p.get(DType::f32, part, 1) == std::vector<double>{first}, "of the last launch");
  d.check(d.graphExecDestroy(exec), "cuGraphExecDestroy");
  d.check(d.streamDestroy(side), "cuStreamDestroy");
  c.finish();
}
const RankScenarioAdded added3("graphs", graphs);

/// The last rank is lost between two collectives, when the others have enqueued the second.
template <int signal> void lost(const RankPlace &at) {
  Place p(at.rank);
  NcclCommunicator c(p.gpu, meet(at), at.rank, at.world, impatience);
  const DevicePtr x = p.put(DType::f32, {1, 2, 3});
  c.enqueue(NcclCollective{Kind::all_reduce, x, x, 3, DType::f32}, p.gpu.stream);
  p.wait(c);
  auto mark = [&](int rank) { return fs::path(at.folder) / fmt::format("enqueued-{}", rank); };
  if (at.rank == at.world - 1) {
    for (int r = 0; r < at.rank; ++r)
      while (!fs::exists(mark(r)))
        std::this_thread::sleep_for(milliseconds(1));
    raise(signal);
  }
  c.enqueue(NcclCollective{Kind::all_reduce, x, x, 3, DType::f32}, p.gpu.stream);
  std::ofstream(mark(at.rank)).flush();
  try {
    p.wait(c, "step 12");
  } catch (const UserError &) {
    p.gpu.wait();  // nothing of it stands in the stream's way any more
    throw;
  }
}
const RankScenarioAdded added4("killed", lost<SIGKILL>), added5("stopped", lost<SIGSTOP>);

void joins(const RankPlace &at) {
  Place p(at.rank);
  NcclCommunicator c(p.gpu, meet(at), at.rank, at.world, impatience);
}
const RankScenarioAdded added6("joins", joins);
void joinsAsOne(const RankPlace &at) {
  Place p(at.rank);
  NcclCommunicator c(p.gpu, meet(at), 0, at.world, patience);
}
const RankScenarioAdded added7("joins-as-one", joinsAsOne);
void joinsAnother(const RankPlace &at) {
  Place p(at.rank);
  NcclCommunicator c(p.gpu, meet(at), at.rank, at.world + at.rank, patience);
}
const RankScenarioAdded added8("joins-another-world", joinsAnother);
void joinsOnOneGpu(const RankPlace &at) {
  Place p(0);
  NcclCommunicator c(p.gpu, meet(at), at.rank, at.world, patience);
}
const RankScenarioAdded added9("joins-on-one-gpu", joinsOnOneGpu);

/// Rank 1 does something else.
void differs(const RankPlace &at) {
  Place p(at.rank);
  NcclCommunicator c(p.gpu, meet(at), at.rank, at.world, patience);
  const DevicePtr x = p.space(DType::f32, 8);
  const NcclCollective one{Kind::all_reduce, x, x, 4, DType::f32};
  std::vector<NcclCollective> calls = {one};
  const std::string how = std::getenv("GPTC_TEST_DIFFERENCE");
  if (at.rank == 1) {
    if (how == "count")
      calls[0].count = 5;
    else if (how == "type")
      calls[0].dtype = DType::i32;
    else if (how == "kind")
      calls[0].kind = Kind::broadcast;
    else if (how == "more")
      calls.push_back(one);
    else if (how == "leaves")
      return c.finish();  // which ends when the other one ends
  }
  c.enqueue(calls, p.gpu.stream);
  p.wait(c, "step 3");
}
const RankScenarioAdded added10("differs", differs);

/// Ranks as threads of one process.
void threads(const RankPlace &) {
  const NcclId id = NcclId::make();
  std::vector<std::string> wrong(2);
  std::vector<std::thread> all;
  for (int rank = 0; rank < 2; ++rank)
    all.emplace_back([&, rank] {
      try {
        Place p(rank);
        NcclCommunicator c(p.gpu, id, rank, 2, patience);
        for (size_t n : {1, 1000})
          everyCollective(p, c, DType::f32, n);
        c.finish();
      } catch (const std::exception &e) {
        wrong[rank] = e.what();
      }
    });
  for (std::thread &t : all)
    t.join();
  expect(wrong[0] + wrong[1] == "", wrong[0] + wrong[1]);
}
const RankScenarioAdded added11("threads", threads);

class NcclTest : public testing::Test {
protected:
  static void SetUpTestSuite() { useStandins(); }
  static std::vector<RankOutcome> run(RankRun r) {
    r.environment.push_back("GPTC_STANDIN_DEVICES=8");
    return runRanks(r);
  }
  static void expectAllWell(const std::vector<RankOutcome> &ranks) {
    for (const RankOutcome &r : ranks) {
      EXPECT_EQ(r.status, 0) << r.text;
      EXPECT_FALSE(r.hung);
      EXPECT_EQ(r.text, ranks[0].text) << "ranks have other results";
    }
  }
  static void expectSays(const RankOutcome &r, std::initializer_list<std::string> words) {
    EXPECT_EQ(r.status, 1) << r.text;
    EXPECT_FALSE(r.hung);
    for (const std::string &w : words)
      EXPECT_NE(r.text.find(w), std::string::npos) << r.text << "does not say " << w;
  }
};

TEST_F(NcclTest, CollectivesBetweenProcesses) {
  for (int world : {1, 2, 4})
    expectAllWell(run({"collectives", world}));
}

TEST_F(NcclTest, GroupsAndSeveralCommunicators) {
  for (int world : {2, 3})
    expectAllWell(run({"groups", world}));
}

TEST_F(NcclTest, Exchanges) {
  for (int world : {1, 2, 3})
    for (const RankOutcome &r : run({"exchanges", world})) {
      EXPECT_EQ(r.status, 0) << r.text;
      EXPECT_FALSE(r.hung);
    }
}

TEST_F(NcclTest, GraphsAreLaunchedAgain) {
  for (const char *order : {"0", "1", "2"})
    for (int world : {1, 2, 4})
      expectAllWell(
          run({.scenario = "graphs", .world = world, .environment = {std::string("GPTC_STANDIN_ORDER=") + order}}));
}

TEST_F(NcclTest, RanksOfOneProcess) { expectAllWell(run({"threads", 1})); }

std::set<std::string> sharedMemory() {
  std::set<std::string> names;
  std::error_code ec;
  for (const auto &entry : fs::directory_iterator("/dev/shm", ec))
    names.insert(entry.path());
  return names;
}

TEST_F(NcclTest, ARankThatDiesIsNamed) {
  const std::set<std::string> before = sharedMemory();
  std::vector<RankOutcome> ranks = run({"killed", 3});
  EXPECT_EQ(ranks[2].status, -SIGKILL);
  for (int r : {0, 1})
    expectSays(ranks[r], {fmt::format("error[GPTC0601]: rank {} of 3: ", r), "step 12",
                          "collective 2 was enqueued last, all_reduce of 3 f32", "remote process exited",
                          // of the other two, the one that is seen first
                          "rank "});
  // Within a machine NCCL may see nothing: the time-out does.
  ranks = run({.scenario = "killed", .world = 3, .environment = {"GPTC_STANDIN_SILENT=1"}});
  int timeouts = 0;
  for (int r : {0, 1}) {
    expectSays(ranks[r],
               {fmt::format("rank {} of 3: step 12 (collective 2 was enqueued last, all_reduce of 3 f32)", r)});
    timeouts += ranks[r].text.find("error[GPTC0602]") != std::string::npos &&
                ranks[r].text.find("has not ended after 2.0 s") != std::string::npos;
  }
  EXPECT_GE(timeouts, 1) << ranks[0].text << ranks[1].text;  // the other may hear that the first has aborted
  EXPECT_EQ(sharedMemory(), before);
}

TEST_F(NcclTest, ARankThatStopsIsATimeOut) {
  const std::vector<RankOutcome> ranks = run({.scenario = "stopped", .world = 2, .expected = 1});
  expectSays(ranks[0],
             {"error[GPTC0602]: rank 0 of 2: step 12 (collective 2 was enqueued last, all_reduce of 3 f32) has "
              "not ended after 2.0 s"});
  EXPECT_TRUE(ranks[1].hung);
}

TEST_F(NcclTest, ARankThatNeverComesIsATimeOut) {
  for (const RankOutcome &r : run({.scenario = "joins", .world = 3, .ranks = {0, 2}}))
    expectSays(r, {"of 3: joining the other ranks "});
}

TEST_F(NcclTest, RanksThatDoNotFitTogetherAreRefused) {
  auto all = [](const std::vector<RankOutcome> &ranks) {
    std::string text;
    for (const RankOutcome &r : ranks) {
      EXPECT_EQ(r.status, 1) << r.text;
      EXPECT_FALSE(r.hung);
      text += r.text;
    }
    return text;
  };
  EXPECT_NE(all(run({"joins-as-one", 2})).find("rank 0 has come twice"), std::string::npos);
  EXPECT_NE(all(run({"joins-another-world", 2})).find("ranks, others say"), std::string::npos);
  EXPECT_NE(all(run({"joins-on-one-gpu", 2})).find("Duplicate GPU detected"), std::string::npos);
}

TEST_F(NcclTest, DifferentCollectivesAreNamed) {
  for (const char *how : {"count", "type", "kind", "more"}) {
    std::string text;
    for (const RankOutcome &r :
         run({.scenario = "differs", .world = 2, .environment = {std::string("GPTC_TEST_DIFFERENCE=") + how}})) {
      expectSays(r, {"of 2: step 3 (collective 1 was enqueued last, "});
      text += r.text;
    }
    EXPECT_NE(text.find("operation 1: rank "), std::string::npos) << how << ": " << text;
  }
  const std::vector<RankOutcome> ranks =
      run({.scenario = "differs", .world = 2, .environment = {"GPTC_TEST_DIFFERENCE=leaves"}});
  expectSays(ranks[0], {"error[GPTC0601]: rank 0 of 2: step 3", "rank 1 has left"});
  expectSays(ranks[1], {"rank 1 of 2: leaving the other ranks failed", "rank 0 has aborted"});
}

// ---- one rank, in this process --------------------------------------------------------------------------------------

TEST_F(NcclTest, WhatHasEndedIsNotUsed) {
  Place p;
  const DevicePtr x = p.put(DType::f32, {1, 2});
  const NcclCollective call{Kind::all_reduce, x, x, 2, DType::f32};
  auto c = std::make_unique<NcclCommunicator>(p.gpu, NcclId::make(), 0, 1, patience);
  EXPECT_THROW(c->enqueue({}, p.gpu.stream), InternalError);
  EXPECT_THROW(c->enqueue(NcclCollective{Kind::all_reduce, x, x, 2, DType::pred}, p.gpu.stream), InternalError);
  c->enqueue(call, p.gpu.stream);
  c->finish();  // waits for it
  EXPECT_EQ(p.get(DType::f32, x, 2), (std::vector<double>{1, 2}));
  EXPECT_THROW(c->enqueue(call, p.gpu.stream), InternalError);
  EXPECT_THROW(c->finish(), InternalError);
  // A graph must go first.
  c = std::make_unique<NcclCommunicator>(p.gpu, NcclId::make(), 0, 1, milliseconds(300));
  const Driver &d = p.gpu.d;
  Graph graph = nullptr;
  ASSERT_EQ(d.streamBeginCapture(p.gpu.stream, captureThreadLocal), success);
  c->enqueue(call, p.gpu.stream);
  ASSERT_EQ(d.streamEndCapture(p.gpu.stream, &graph), success);
  try {
    c->finish();
    FAIL() << "a graph with operations of a communicator that has ended";
  } catch (const UserError &e) {
    EXPECT_EQ(e.diagnostics[0].message, "rank 0 of 1: leaving the other ranks has not ended after 0.3 s");
    EXPECT_EQ(e.exitCode(), 6);
  }
  ASSERT_EQ(d.graphDestroy(graph), success);
  // Aborted: what is enqueued ends at once.
  c = std::make_unique<NcclCommunicator>(p.gpu, NcclId::make(), 0, 1, patience);
  c->enqueue(call, p.gpu.stream);
  c.reset();
  p.gpu.wait();
  EXPECT_TRUE(std::isnan(p.get(DType::f32, x, 2)[0]));
}

TEST_F(NcclTest, MemoryThatIsNotThereOrOverlaps) {
  Place p;
  const DevicePtr x = p.put(DType::f32, {1, 2, 3, 4, 5, 6, 7, 8});
  NcclCommunicator c(p.gpu, NcclId::make(), 0, 1, patience);
  c.enqueue(NcclCollective{Kind::all_reduce, x, x + 4, 4, DType::f32}, p.gpu.stream);
  try {
    p.wait(c);
    FAIL() << "overlapping memory";
  } catch (const UserError &e) {
    EXPECT_NE(e.diagnostics[0].message.find("input and result overlap"), std::string::npos) << e.what();
    EXPECT_EQ(e.exitCode(), 6);
  }
}

// The table: what NcclCommunicator never does.
TEST_F(NcclTest, TheStandInRefusesWhatNcclWould) {
  Place p;
  const Nccl &n = Nccl::get();
  const DevicePtr at = p.put(DType::f32, {1, 2});
  void *x = reinterpret_cast<void *>(at);
  NcclComm c = nullptr;
  NcclConfig config;
  auto settled = [&] {
    NcclResult state = ncclRunning;
    for (int i = 0; i < 10 && state == ncclRunning; ++i)
      EXPECT_EQ(n.asyncError(c, &state), ncclOk);
    return state;
  };
  EXPECT_EQ(n.initRank(&c, 1, NcclId{}, 0, &config), ncclBadArgument) << "no id";
  EXPECT_EQ(n.initRank(&c, 1, NcclId::make(), 1, &config), ncclBadArgument) << "rank 1 of 1";
  config.magic = 0;
  EXPECT_EQ(n.initRank(&c, 1, NcclId::make(), 0, &config), ncclBadArgument) << "configuration";
  config = {};
  EXPECT_EQ(n.initRank(&c, 1, NcclId::make(), 0, &config), ncclRunning);
  EXPECT_EQ(n.allReduce(x, x, 2, ncclF32, ncclAdd, c, p.gpu.stream), ncclBadArgument) << "before it has joined";
  EXPECT_EQ(settled(), ncclOk);
  EXPECT_EQ(n.destroy(c), ncclBadUsage) << "not finalized";
  EXPECT_EQ(n.groupEnd(), ncclBadUsage) << "no group";
  EXPECT_EQ(n.allReduce(x, x, 2, NcclType(12), ncclAdd, c, p.gpu.stream), ncclBadArgument) << "no type";
  EXPECT_EQ(n.broadcast(x, x, 2, ncclF32, 1, c, p.gpu.stream), ncclBadArgument) << "no such root";
  Stream gone = nullptr;
  ASSERT_EQ(p.gpu.d.streamCreate(&gone, streamNonBlocking), success);
  ASSERT_EQ(p.gpu.d.streamDestroy(gone), success);
  EXPECT_EQ(n.allReduce(x, x, 2, ncclF32, ncclAdd, c, gone), ncclCudaFailed) << "a stream that was destroyed";
  // A group is refused as a whole.
  EXPECT_EQ(n.groupStart(), ncclOk);
  EXPECT_EQ(n.allReduce(x, x, 2, ncclF32, ncclAdd, c, p.gpu.stream), ncclOk);
  EXPECT_EQ(n.broadcast(x, x, 2, ncclF32, 9, c, p.gpu.stream), ncclBadArgument);
  EXPECT_EQ(n.groupEnd(), ncclBadArgument);
  // One call at a time.
  EXPECT_EQ(n.allReduce(x, x, 2, ncclF32, ncclAdd, c, p.gpu.stream), ncclRunning);
  EXPECT_EQ(n.allReduce(x, x, 2, ncclF32, ncclAdd, c, p.gpu.stream), ncclBadArgument) << "before the last has ended";
  EXPECT_EQ(settled(), ncclOk);
  // A capture that ends before the call has.
  Graph graph = nullptr;
  ASSERT_EQ(p.gpu.d.streamBeginCapture(p.gpu.stream, captureThreadLocal), success);
  EXPECT_EQ(n.allReduce(x, x, 2, ncclF32, ncclAdd, c, p.gpu.stream), ncclRunning);
  ASSERT_EQ(p.gpu.d.streamEndCapture(p.gpu.stream, &graph), success);
  EXPECT_EQ(settled(), ncclCudaFailed);
  EXPECT_EQ(n.abort(c), ncclOk);
  NcclResult state;
  EXPECT_EQ(n.asyncError(c, &state), ncclBadArgument) << "after it was aborted";
  EXPECT_EQ(n.abort(c), ncclBadArgument);
  ASSERT_EQ(p.gpu.d.graphDestroy(graph), success);
  p.gpu.wait();
}

#if __has_include(<nccl.h>)
// Types by their form: what their ABI depends on.
template <class T> constexpr auto formOf() {
  if constexpr (std::is_pointer_v<T>)
    return static_cast<void *>(nullptr);
  else if constexpr (std::is_enum_v<T> || sizeof(T) == 4)
    return int();
  else if constexpr (sizeof(T) == 8)
    return static_cast<unsigned long long>(0);
  else
    return std::array<char, sizeof(T)>();
}
template <class F> struct Form;
template <class R, class... P> struct Form<R (*)(P...)> {
  using type = void (*)(decltype(formOf<R>()), decltype(formOf<P>())...);
};
#define GPTC_COMPARE(member, symbol, params)                                                                           \
  static_assert(std::is_same_v<Form<decltype(Nccl::member)>::type, Form<decltype(&::symbol)>::type>, #symbol);
GPTC_NCCL_FUNCTIONS(GPTC_COMPARE)
GPTC_COMPARE(errorString, ncclGetErrorString, )
GPTC_COMPARE(lastError, ncclGetLastError, )

TEST(NcclHeader, NumbersAgree) {
  static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
  // Newer headers say more behind what 2.19 has.
  static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic));
  static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
  static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
  static_assert(offsetof(NcclConfig, netName) == offsetof(ncclConfig_t, netName));
  static_assert(offsetof(NcclConfig, splitShare) == offsetof(ncclConfig_t, splitShare));
  static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(NcclConfig().magic, theirs.magic);
  EXPECT_EQ(NcclConfig().unused, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(int(ncclOk), ncclSuccess);
  EXPECT_EQ(int(ncclCudaFailed), ncclUnhandledCudaError);
  EXPECT_EQ(int(ncclBadArgument), ncclInvalidArgument);
  EXPECT_EQ(int(ncclBadUsage), ncclInvalidUsage);
  EXPECT_EQ(int(ncclRemoteFailed), ncclRemoteError);
  EXPECT_EQ(int(ncclRunning), ncclInProgress);
  EXPECT_EQ(int(ncclU8), ncclUint8);
  EXPECT_EQ(int(ncclI32), ncclInt32);
  EXPECT_EQ(int(ncclU32), ncclUint32);
  EXPECT_EQ(int(ncclI64), ncclInt64);
  EXPECT_EQ(int(ncclF16), ncclFloat16);
  EXPECT_EQ(int(ncclF32), ncclFloat32);
  EXPECT_EQ(int(ncclF64), ncclFloat64);
  EXPECT_EQ(int(ncclBF16), ncclBfloat16);
  EXPECT_EQ(int(ncclAdd), ncclSum);
}
#endif

}  // namespace
}  // namespace gptc::test
