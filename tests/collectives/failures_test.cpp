// Ranks that do not come, die, stop, come late or do something else: each is seen by all others, in time and by name.
#include "tests/collectives/ranks_of.h"

#include "runtime/collectives/in_process.h"
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <csignal>
#include <regex>
#include <thread>
#include <unistd.h>

namespace gptc::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Kind = Collective::Kind;

// --- threads --------------------------------------------------------------------------------------------------------

/// Runs the ranks of a job, and returns what their errors say.
std::vector<std::pair<ErrorCode, std::string>> errorsOf(int world, const std::function<void(Communicator &)> &f) {
  InProcess job(world, 500ms);
  std::vector<std::pair<ErrorCode, std::string>> errors(static_cast<size_t>(world));
  std::vector<std::thread> ranks;
  for (int r = 0; r < world; ++r)
    ranks.emplace_back([&, r] {
      auto c = job.join(r);
      errors[size_t(r)] = errorOf([&] { f(*c); });
    });
  for (std::thread &t : ranks)
    t.join();
  return errors;
}

void sum(Communicator &c, size_t n = 4) {
  std::vector<float> x(n, 1);
  c.run({{Kind::all_reduce, x.data(), x.data(), n, DType::f32}}, SumOrder::tree);
}

TEST(Failures, OfThreads) {
  auto late = errorsOf(2, [](Communicator &c) {
    sum(c);
    if (c.rank == 1)
      std::this_thread::sleep_for(900ms);
    sum(c);
  });
  EXPECT_EQ(late[0].first, ErrorCode::CollectiveTimeout);
  EXPECT_HAS(late[0].second, "rank 0 of 2 on " + hostName() +
                                 ", group world, collective 2, all_reduce of 4 f32: rank 1 on " + hostName() +
                                 " did not come in 0.5 s");
  EXPECT_HAS(late[1].second, "cannot go on: rank 0 of 2");
  auto gone = errorsOf(2, [](Communicator &c) {
    if (c.rank == 0)
      c.barrier();
  });
  EXPECT_EQ(gone[0].first, ErrorCode::RankFailed);
  EXPECT_HAS(gone[0].second, "collective 1, a barrier: cannot go on: rank 1 is gone");
  auto other = errorsOf(2, [](Communicator &c) { sum(c, c.rank ? 5 : 4); });
  for (const auto &[code, text] : other) {
    EXPECT_EQ(code, ErrorCode::CollectiveMismatch);
    EXPECT_HAS(text, "all_reduce of 4 f32 as a tree");
    EXPECT_HAS(text, "all_reduce of 5 f32 as a tree");
  }
}

// --- processes ------------------------------------------------------------------------------------------------------

/// What a rank does wrong in its second collective; rank 1 is the one.
enum class Fault { dies, stops, freezes, late, leaves };

void faulty(const RankPlace &place, Fault fault) {
  auto client = joinJob(place.rank, place.world);
  auto c = joinGroup(client.get(), Group::all(place.world),
                     joinOptions(fault == Fault::dies || fault == Fault::freezes ? 20s : 1s));
  sum(*c, 100000);
  // All are through: one that dies now cannot be missed in that one, which its last messages may still be under way in.
  client->barrier("all are through", 20s);
  const auto begin = Clock::now();
  const bool wrong = place.rank == 1;
  if (wrong && fault == Fault::dies)
    raise(SIGKILL);
  if (wrong && (fault == Fault::stops || fault == Fault::freezes))
    raise(SIGSTOP);
  if (wrong && fault == Fault::leaves)
    std::exit(3);
  if (wrong && fault == Fault::late)
    std::this_thread::sleep_for(1500ms);
  const auto [code, text] = errorOf([&] { sum(*c, 100000); });
  const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("%d %.2f %s", int(code), waited, text.c_str());
}
const RankScenarioAdded added[] = {
    {"dies", [](const RankPlace &p) { faulty(p, Fault::dies); }},
    {"stops", [](const RankPlace &p) { faulty(p, Fault::stops); }},
    {"freezes", [](const RankPlace &p) { faulty(p, Fault::freezes); }},
    {"late", [](const RankPlace &p) { faulty(p, Fault::late); }},
    {"leaves", [](const RankPlace &p) { faulty(p, Fault::leaves); }},
};

struct Said {
  int code = 0;
  double seconds = 0;
  std::string text;
};
std::vector<Said> runFaulty(const std::string &scenario, int world, int expected, bool tcp,
                            std::chrono::milliseconds silence = 30s) {
  const std::string token = newToken();
  RendezvousServer server({.token = token, .world = world, .silence = silence});
  std::vector<Said> all;
  for (const RankOutcome &o : runRanks({.scenario = scenario,
                                        .world = world,
                                        .expected = expected,
                                        .environment = JobPlace::of(server, token).environment(tcp)})) {
    Said s;
    int at = 0;
    const std::string text = printed(o.text);
    if (std::sscanf(text.c_str(), "%d %lf %n", &s.code, &s.seconds, &at) == 2)
      s.text = text.substr(size_t(at));
    else  // it did not get that far
      s.text = fmt::format("no report, {} {}: {}", o.hung ? "hung, status" : "status", o.status, text);
    all.push_back(s);
  }
  return all;
}

class Failing : public testing::TestWithParam<bool> {
protected:
  const bool tcp = GetParam();
  void SetUp() override {
    if (const std::string why = whyNoGloo(); tcp && !why.empty())
      GTEST_SKIP() << why;
  }
};
INSTANTIATE_TEST_SUITE_P(Failures, Failing, testing::Bool(), [](auto &info) { return info.param ? "Gloo" : "Shared"; });

TEST_P(Failing, ADeadRankIsSeenAtOnce) {
  for (const char *how : {"dies", "leaves"}) {
    const auto said = runFaulty(how, 4, 4, tcp);
    for (int r : {0, 2, 3}) {
      EXPECT_EQ(said[size_t(r)].code, int(ErrorCode::RankFailed)) << said[size_t(r)].text;
      EXPECT_LT(said[size_t(r)].seconds, 3) << how;
      EXPECT_HAS(said[size_t(r)].text,
                 fmt::format("rank {} of 4 on {}, group world, collective 2, all_reduce of 100000 f32: "
                             "cannot go on: rank 1 of 4 on {} (127.0.0.1:",
                             r, hostName(), hostName()));
      EXPECT_HAS(said[size_t(r)].text, "is gone: ");
    }
  }
}

TEST_P(Failing, AStoppedRankIsNamedByAllInTime) {
  const auto said = runFaulty("stops", 4, 3, tcp);
  // Who came first waits for the whole time, and the others hear of it.
  EXPECT_GT(std::max({said[0].seconds, said[2].seconds, said[3].seconds}), 0.9);
  for (int r : {0, 2, 3}) {
    EXPECT_EQ(said[size_t(r)].code, int(ErrorCode::CollectiveTimeout)) << said[size_t(r)].text;
    EXPECT_LT(said[size_t(r)].seconds, 2.5);
    EXPECT_HAS(said[size_t(r)].text, fmt::format("rank 1 on {} did not come in 1.0 s", hostName()));
  }
}

TEST_P(Failing, AStoppedRankIsMissedByItsHeartbeatLongBeforeTheTimeOut) {
  const auto said = runFaulty("freezes", 2, 1, tcp, 1s);
  EXPECT_EQ(said[0].code, int(ErrorCode::RankFailed)) << said[0].text;
  EXPECT_LT(said[0].seconds, 4);
  EXPECT_HAS(said[0].text, "cannot go on: rank 1 of 2 on " + hostName());
  EXPECT_HAS(said[0].text, "is gone: nothing was heard of it for 1.0 s");
}

TEST_P(Failing, ALateRankIsNamedAndHearsOfIt) {
  const auto said = runFaulty("late", 4, 4, tcp);
  for (const Said &s : said) {
    EXPECT_EQ(s.code, int(ErrorCode::CollectiveTimeout)) << s.text;
    EXPECT_HAS(s.text, fmt::format("rank 1 on {} did not come in 1.0 s", hostName()));
  }
  EXPECT_HAS(said[1].text,
             "rank 1 of 4 on " + hostName() + ", group world, collective 2, all_reduce of 100000 f32: cannot go on: ");
}

void mismatched(const RankPlace &place) {
  auto client = joinJob(place.rank, place.world);
  const bool odd = place.rank == 1;
  const auto begin = Clock::now();
  std::vector<float> x(1 << 20);
  auto sums = [&](size_t n, DType t, Kind k = Kind::all_reduce) { return Collective{k, x.data(), x.data(), n, t}; };
  using Calls = std::vector<Collective>;
  const std::pair<Calls, Calls> pairs[] = {
      {{sums(1000, DType::f32)}, {sums(1001, DType::f32)}},
      {{sums(1000, DType::f32)}, {sums(1000, DType::f32, Kind::all_gather)}},
      {{sums(1000, DType::f32)}, {sums(1000, DType::bf16)}},
      {{sums(8, DType::i32), sums(9, DType::f32)}, {sums(8, DType::i32), sums(9, DType::i32)}},
      {{sums(8, DType::i32), sums(9, DType::f32)}, {sums(8, DType::i32)}},
      {{sums(9, DType::f32)}, {}},  // a barrier
  };
  int i = 0;
  for (const auto &[most, one] : pairs) {
    // Each in a job of its own, as a failure ends a job; only the first ranks' text is compared.
    if (std::to_string(i++) != std::getenv("TEST_CASE"))
      continue;
    auto c = joinGroup(client.get(), Group::all(place.world), joinOptions(10s));
    const auto [code, text] = errorOf([&] {
      if (odd && one.empty())
        c->barrier();
      else
        c->run(odd ? one : most, SumOrder::tree);
    });
    std::printf("%d %.2f %s", int(code), std::chrono::duration<double>(Clock::now() - begin).count(), text.c_str());
  }
}
const RankScenarioAdded addedToo("mismatched", mismatched);

TEST_P(Failing, RanksThatDifferAreToldBothSides) {
  const char *const sides[][2] = {
      {"rank 0 runs all_reduce of 1000 f32 as a tree", "rank 1 runs all_reduce of 1001 f32 as a tree"},
      {"rank 0 runs all_reduce of 1000 f32 as a tree", "rank 1 runs all_gather of 1000 f32"},
      {"rank 0 runs all_reduce of 1000 f32 as a tree", "rank 1 runs all_reduce of 1000 bf16 as a tree"},
      {"rank 0 runs all_reduce of 9 f32 as a tree",
       "rank 1 runs all_reduce of 9 i32 as a tree (number 2 of the 2 in the bucket)"},
      {"rank 0 runs all_reduce of 9 f32 as a tree", "rank 1 runs 1 collectives (number 2 of the 2 in the bucket)"},
      {"rank 0 runs all_reduce of 9 f32 as a tree", "rank 1 runs a barrier"},
  };
  for (int i = 0; i < 6; ++i) {
    setenv("TEST_CASE", std::to_string(i).c_str(), 1);
    const int world = i < 2 ? 4 : 2;
    const auto said = runFaulty("mismatched", world, world, tcp);
    for (size_t r = 0; r < said.size(); ++r) {
      EXPECT_EQ(said[r].code, int(ErrorCode::CollectiveMismatch)) << i << ", rank " << r << ": " << said[r].text;
      EXPECT_LT(said[r].seconds, 5);
    }
    if (world == 2) {
      // Rank 0 finds it itself, or hears first of what rank 1 has found: which comes first differs with who says it.
      for (size_t r : {0, 1})
        for (const char *side : sides[i])
          EXPECT_HAS(said[r].text, llvm::StringRef(side).split(" (number").first.str());
      EXPECT_EQ(said[0].text.find("(number 2 of the 2 in the bucket)") != std::string::npos, i == 3 || i == 4)
          << said[0].text;
    }
    EXPECT_HAS(said[1].text, "rank 1 runs ");
  }
}

void joinsAlone(const RankPlace &place) {
  auto client = joinJob(place.rank, place.world);
  const auto [code, text] = errorOf([&] {
    if (place.rank == 0) {
      joinGroup(client.get(), Group::all(place.world), joinOptions(400ms));
    } else {
      client->get("never", 20s);
    }
  });
  std::printf("%d 0 %s", int(code), text.c_str());
}
void usesNoInterface(const RankPlace &place) {
  auto client = joinJob(place.rank, place.world);
  ::setenv("GPTC_INTERFACE", "none0", 1);
  if (const char *c = std::getenv("TEST_CASE"); c && std::string(c) == "no-address") {
    if (::unshare(CLONE_NEWNET) != 0)  // for this thread, where lo is down and has no address
      return void(std::printf("0 0 %s", strerror(errno)));
    ::setenv("GPTC_INTERFACE", "lo", 1);
  }
  try {
    joinGroup(client.get(), Group::all(place.world), joinOptions(5s));
  } catch (const UserError &e) {
    std::printf("%d 0 %s; %s", int(e.diagnostics[0].code), e.diagnostics[0].message.c_str(),
                e.diagnostics[0].help.at(0).c_str());
  }
}
const RankScenarioAdded addedAlso[] = {{"joins-alone", joinsAlone}, {"no-interface", usesNoInterface}};

TEST_P(Failing, WhileJoining) {
  auto said = runFaulty("joins-alone", 2, 2, tcp);
  EXPECT_EQ(said[0].code, int(ErrorCode::CollectiveTimeout)) << said[0].text;
  for (const Said &s : said)
    EXPECT_HAS(s.text, "rank 0 of 2 on " + hostName() + ", joining group world: rank 1 did not come in 0.4 s");
  said = runFaulty("no-interface", 2, 2, tcp);
  for (const Said &s : said) {
    EXPECT_EQ(s.code, int(ErrorCode::RanksUnclear)) << s.text;
    EXPECT_HAS(s.text, "GPTC_INTERFACE=none0: there is no such network interface; " + hostName() + " has ");
    EXPECT_TRUE(std::regex_search(s.text, std::regex(" lo(,|$)"))) << s.text;
  }
  ::setenv("TEST_CASE", "no-address", 1);
  said = runFaulty("no-interface", 2, 2, tcp);
  ::unsetenv("TEST_CASE");
  for (const Said &s : said)
    if (s.code == 0) {
      GTEST_SKIP() << "no network namespaces: " << s.text;
    } else {
      EXPECT_EQ(s.code, int(ErrorCode::RanksUnclear)) << s.text;
      EXPECT_HAS(s.text, "GPTC_INTERFACE=lo: this network interface has no address; ");
    }
}

}  // namespace
}  // namespace gptc::test
