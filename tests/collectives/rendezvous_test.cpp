// The rendezvous by threads of one process: values, barriers, failures, and what strangers cannot do.
#include "runtime/rendezvous/rendezvous.h"
#include "runtime/rendezvous/wire.h"
#include "tests/collectives/ranks_of.h"
#include "tests/support/eventually.h"

#include <gtest/gtest.h>

#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <set>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace gptc::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Server = RendezvousServer;
using Client = RendezvousClient;

/// For what must come: a limit that only ends a test that has failed already. A machine may be busy.
constexpr auto enough = 1min;

Server::Options job(int world, std::string address = "127.0.0.1") {
  return {.address = std::move(address), .token = newToken(), .world = world};
}
std::unique_ptr<Client> join(const Server::Options &o, const Server &s, int rank) {
  return std::make_unique<Client>(Client::Options{o.address, s.port(), o.token, rank, o.world, enough});
}

TEST(Rendezvous, Tokens) {
  std::set<std::string> all;
  for (int i = 0; i < 100; ++i)
    all.insert(newToken());
  EXPECT_EQ(all.size(), 100u);
  EXPECT_EQ(all.begin()->size(), 32u);
  EXPECT_TRUE(wire::equalInConstantTime("abc", "abc"));
  for (const char *other : {"abd", "ab", "abcd", "", "abcabc"})
    EXPECT_FALSE(wire::equalInConstantTime("abc", other)) << other;
  EXPECT_FALSE(wire::equalInConstantTime("", ""));
  EXPECT_FALSE(wire::equalInConstantTime("", "abc"));
}

// It would not come up by itself: who tries again waits for nothing.
TEST(Rendezvous, WithoutLoopbackTheErrorComesAtOnce) {
  constexpr int cannot = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
      ::_exit(cannot);
    try {
      Client(Client::Options{"127.0.0.1", 20000, newToken(), 0, 2, 30s});
    } catch (const UserError &e) {
      ::_exit(e.exitCode() == 4 ? 0 : 1);
    }
    ::_exit(2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == cannot)
    GTEST_SKIP() << "this user may not make a network of its own";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the exit code is that of a failed rank, which is started again";
}

class OverAddresses : public testing::TestWithParam<const char *> {};
INSTANTIATE_TEST_SUITE_P(Rendezvous, OverAddresses, testing::Values("127.0.0.1", "::1", "localhost"), [](auto &info) {
  return info.index == 0 ? "v4" : info.index == 1 ? "v6" : "name";
});

TEST_P(OverAddresses, ValuesCountersAndBarriers) {
  const auto o = job(3, GetParam());
  const Server s(o);
  std::vector<std::thread> ranks;
  std::atomic<int> before{0};
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      auto c = join(o, s, rank);
      EXPECT_FALSE(c->localAddress().empty());
      c->set(fmt::format("key/{}", rank), std::string("\0x", 2) + std::to_string(rank));
      for (int other = 0; other < 3; ++other)
        EXPECT_EQ(c->get(fmt::format("key/{}", other), enough), std::string("\0x", 2) + std::to_string(other));
      const int64_t n = c->add("count", 5);
      EXPECT_TRUE(n == 5 || n == 10 || n == 15) << n;
      for (int round = 0; round < 20; ++round) {
        ++before;
        c->barrier("round", enough);
        EXPECT_GE(before.load(), 3 * (round + 1));
        c->barrier("round", enough);
      }
      EXPECT_EQ(c->add("count", -1000) <= -985, true);
      c->set("large", std::string(Server::maxMessage - 5, 'x'));
      EXPECT_EQ(c->get("large", enough).size(), Server::maxMessage - 5);
      c->leave();
    });
  for (std::thread &t : ranks)
    t.join();
  EXPECT_EQ(s.joined(), 3);
  EXPECT_EQ(s.left(), 3);
  EXPECT_FALSE(s.failure());
}

TEST(Rendezvous, WaitsEndInTimeAndNameWhatIsMissing) {
  const auto o = job(3);
  const Server s(o);
  auto a = join(o, s, 0), b = join(o, s, 2);
  const auto begin = Clock::now();
  auto [code, text] = errorOf([&] { a->get("never", 200ms); });
  EXPECT_EQ(code, ErrorCode::CollectiveTimeout);
  EXPECT_HAS(text, "rank 0 of 3 on " + hostName() + ": no rank has set never at the rendezvous " + s.where());
  std::thread other([&] { errorOf([&] { b->barrier("start", 600ms); }); });
  std::tie(code, text) = errorOf([&] { a->barrier("start", 400ms); });
  EXPECT_EQ(code, ErrorCode::CollectiveTimeout);
  EXPECT_HAS(text, "missing: 1\n");
  EXPECT_LT(Clock::now() - begin, 8s);  // less than the silence after which a rank is lost
  other.join();
}

TEST(Rendezvous, ALostRankIsSeenByAllAtOnce) {
  const auto o = job(3);
  const Server s(o);
  auto a = join(o, s, 0), b = join(o, s, 1), c = join(o, s, 2);
  std::atomic<int> called{0};
  auto listening = b->onFailure([&] { ++called; });
  {
    auto gone = b->onFailure([&] { called += 100; });
  }
  std::thread closes([&] {
    std::this_thread::sleep_for(50ms);
    c.reset();
  });
  const auto begin = Clock::now();
  const auto [code, text] = errorOf([&] { a->get("never", 20s); });
  EXPECT_LT(Clock::now() - begin, 8s);  // less than the silence after which a rank is lost
  EXPECT_EQ(code, ErrorCode::RankFailed);
  EXPECT_HAS(text, "rank 2 of 3 on " + hostName());
  EXPECT_HAS(text, "is gone: its connection closed");
  closes.join();
  ASSERT_TRUE(b->failure(enough));
  EXPECT_EQ(b->failure()->rank, 2);
  EXPECT_TRUE(eventually([&] { return called.load() == 1; })) << called.load();  // known first, then told
  EXPECT_EQ(s.failure()->rank, 2);
  std::atomic<bool> late{false};
  auto afterwards = b->onFailure([&] { late = true; });
  EXPECT_TRUE(late);
  EXPECT_EQ(errorOf([&] { b->set("a", "b"); }).first, ErrorCode::RankFailed);
}

TEST(Rendezvous, OnlyTheFirstFailureCounts) {
  const auto o = job(3);
  Server s(o);
  auto a = join(o, s, 0), b = join(o, s, 1);
  a->report(ErrorCode::CollectiveTimeout, "rank 0 waits for rank 1");
  ASSERT_TRUE(b->failure(enough));
  EXPECT_EQ(b->failure()->code, ErrorCode::CollectiveTimeout);
  EXPECT_EQ(b->failure()->rank, 0);
  EXPECT_EQ(b->failure()->text, "rank 0 waits for rank 1");
  s.fail({1, ErrorCode::RankFailed, "killed"});
  EXPECT_EQ(s.failure()->rank, 0);
  auto late = join(o, s, 2);  // a rank that comes later hears of it
  ASSERT_TRUE(late->failure(enough));
  EXPECT_EQ(late->failure()->text, "rank 0 waits for rank 1");
}

TEST(Rendezvous, WhatOneRankMetIsForOthersThatRanksFailure) {
  const auto o = job(2);
  Server s(o);
  auto a = join(o, s, 0), b = join(o, s, 1);
  a->report(ErrorCode::DiskFull, "no room", "free some");
  ASSERT_TRUE(b->failure(enough));
  EXPECT_EQ(b->failure()->help, "free some");
  EXPECT_EQ(b->failure()->code, ErrorCode::RankFailed);
  EXPECT_EQ(b->failure()->rank, 0);
  EXPECT_HAS(b->failure()->text, "rank 0 of 2 on " + hostName() + " (127.0.0.1:");
  EXPECT_HAS(b->failure()->text, ") failed: no room");
  EXPECT_EQ(b->failure()->cause, ErrorCode::DiskFull);
  EXPECT_EQ(s.failure()->cause, ErrorCode::DiskFull);
}

// Who hosts the server and has to end should not do so before.
TEST(Rendezvous, TheServerKnowsWhetherAllKnowOfAFailure) {
  const auto o = job(3);
  Server s(o);
  auto a = join(o, s, 0), b = join(o, s, 1);
  a->report(ErrorCode::DiskFull, "no room");
  ASSERT_TRUE(b->failure(enough));
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(s.allKnowFailure()) << "rank 2 has not come";
  auto c = join(o, s, 2);
  EXPECT_TRUE(eventually([&] { return s.allKnowFailure(); }));
  EXPECT_TRUE(c->failure(enough));
}

TEST(Rendezvous, TheLauncherCanFailARank) {
  const auto o = job(2);
  Server s(o);
  auto a = join(o, s, 0);
  s.fail({1, ErrorCode::RankFailed, "rank 1 ended by signal 9"});
  ASSERT_TRUE(a->failure(enough));
  EXPECT_EQ(a->failure()->text, "rank 1 ended by signal 9");
}

TEST(Rendezvous, SilenceIsNoticedAndHeartbeatsAreNot) {
  auto o = job(2);
  o.silence = 300ms;
  const Server s(o);
  auto a = join(o, s, 0);
  std::this_thread::sleep_for(700ms);
  EXPECT_FALSE(s.failure());
  // A rank that greets and then says nothing, as one that is stopped.
  std::string why;
  wire::Socket silent = wire::connectTo(o.address, s.port(), Clock::now() + enough, why);
  std::string hi =
      wire::Writer(wire::Kind::hello).number(wire::magic).number(1).number(2).string(o.token).string("h").done();
  ASSERT_TRUE(wire::sendSome(silent.fd, hi, why)) << why;
  ASSERT_TRUE(a->failure(enough));
  EXPECT_EQ(a->failure()->rank, 1);
  EXPECT_HAS(a->failure()->text, "nothing was heard of it for 0.3 s");
}

TEST(Rendezvous, ARankOfAnotherVersionIsAFailureAndAStrangerIsNone) {
  const auto o = job(2);
  const Server s(o);
  auto a = join(o, s, 0);
  auto refused = [&](const std::string &token) {
    std::string why, in;
    wire::Socket other = wire::connectTo(o.address, s.port(), Clock::now() + enough, why);
    std::string hi =
        wire::Writer(wire::Kind::hello).number(wire::magic - 1).number(1).number(2).string(token).string("h").done();
    EXPECT_TRUE(wire::sendSome(other.fd, hi, why)) << why;
    EXPECT_TRUE(eventually([&] { return !wire::receiveSome(other.fd, in, 1000, why); }));
    return in;
  };
  EXPECT_HAS(refused("0123456789abcdef0123456789abcdef"), "it did not present the job's token");
  EXPECT_FALSE(s.failure());
  EXPECT_HAS(refused(o.token), "it is of another version of gptc");
  ASSERT_TRUE(a->failure(enough));
  EXPECT_EQ(a->failure()->cause, ErrorCode::RanksDiffer);
  EXPECT_HAS(a->failure()->text, "rank 1 of 2 on h (127.0.0.1:");
  EXPECT_EQ(a->failure()->help, "copy one build to all machines");
  EXPECT_TRUE(eventually([&] { return s.allKnowFailure(); }));
}

TEST(Rendezvous, HeartbeatsCarryNews) {
  const auto o = job(2);
  const Server s(o);
  std::atomic<int> beats{0};
  Client a({.host = o.address, .port = s.port(), .token = o.token, .rank = 1, .world = 2, .news = [&] {
              return "beat " + std::to_string(++beats);
            }});
  auto b = join(o, s, 0);
  ASSERT_TRUE(eventually([&] { return s.news()[1] == "beat 3"; }, 3s)) << "several in a second";
  EXPECT_EQ(s.news()[0], "");
  EXPECT_FALSE(s.failure());
}

TEST(Rendezvous, AServerThatIsStoppedIsAFailureWhereThatIsAskedFor) {
  auto o = job(3);
  o.silence = 300ms;
  const Server s(o);
  Client heard({o.address, s.port(), o.token, 0, 3, enough, 300ms});
  // A server that welcomes and then says nothing.
  std::string why;
  wire::Socket listener = wire::listenAt(o.address, 0, why);
  const uint16_t port = wire::localPlace(listener.fd).port;
  std::vector<wire::Socket> open;
  std::thread stopped([&] {
    while (open.size() < 2) {
      pollfd p{listener.fd, POLLIN, 0};
      poll(&p, 1, int(std::chrono::milliseconds(enough).count()));
      open.emplace_back(::accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      std::string welcome = wire::Writer(wire::Kind::welcome).number(int64_t(75)).done(), e;
      wire::sendSome(open.back().fd, welcome, e);
    }
  });
  const auto begin = Clock::now();
  Client asks({o.address, port, o.token, 1, 3, enough, 300ms}), patient({o.address, port, o.token, 2, 3, enough});
  stopped.join();
  ASSERT_TRUE(asks.failure(enough));
  EXPECT_GE(Clock::now() - begin, 300ms);
  EXPECT_HAS(asks.failure()->text, "is gone: nothing was heard of it for 0.3 s");
  std::this_thread::sleep_for(400ms);
  EXPECT_FALSE(patient.failure());
  EXPECT_FALSE(heard.failure());
}

TEST(Rendezvous, TheServersEndIsAFailure) {
  const auto o = job(2);
  auto s = std::make_unique<Server>(o);
  const std::string where = s->where();
  auto a = join(o, *s, 0), b = join(o, *s, 1);
  b->leave();
  s.reset();
  ASSERT_TRUE(a->failure(enough));
  EXPECT_EQ(a->failure()->rank, -1);
  EXPECT_EQ(a->failure()->text, "the rendezvous at " + where + " is gone: its connection closed");
  EXPECT_FALSE(b->failure(100ms)) << "who has left does not care";
}

TEST(Rendezvous, WhoMayNotJoinHearsWhy) {
  const auto o = job(2);
  const Server s(o);
  auto a = join(o, s, 0);
  auto refused = [&](auto change) {
    Client::Options c{o.address, s.port(), o.token, 1, 2, 2s};
    change(c);
    const auto [code, text] = errorOf([&] { Client x(c); });
    EXPECT_EQ(code, ErrorCode::RendezvousFailed);
    EXPECT_HAS(text, "the rendezvous at " + s.where() + " refuses rank");
    EXPECT_HAS(text, "= help: all ranks of a job must be started by one gptrun");
    return text;
  };
  EXPECT_HAS(refused([](auto &c) { c.token = newToken(); }), "did not present the job's token");
  EXPECT_HAS(refused([](auto &c) { c.rank = 0; }), "rank 0 has come already");
  EXPECT_HAS(refused([](auto &c) { c.rank = 2; }), "there is no rank 2 among 2");
  EXPECT_HAS(refused([](auto &c) { c.world = 3; }), "it came for a job of 3 ranks, this one has 2");
  EXPECT_FALSE(s.failure());
  a->set("still", "served");
}

TEST(Rendezvous, NobodyThere) {
  uint16_t port = 0;
  {
    const Server s(job(1));
    port = s.port();
    const auto [code, text] = errorOf([&] {
      auto again = job(1);
      again.port = port;
      Server other(again);
    });
    EXPECT_EQ(code, ErrorCode::RendezvousFailed);
    EXPECT_HAS(text, fmt::format("cannot listen for ranks at 127.0.0.1:{}: Address already in use", port));
  }
  const auto [code, text] = errorOf([&] { Client c({"127.0.0.1", port, newToken(), 1, 2, 300ms}); });
  EXPECT_EQ(code, ErrorCode::RendezvousFailed);
  EXPECT_HAS(text, fmt::format("does not reach the rendezvous at 127.0.0.1:{} in 0.3 s: Connection refused", port));
  EXPECT_HAS(errorOf([&] { Server s(job(1, "192.0.2.1")); }).second, "cannot listen for ranks at 192.0.2.1:0");
}

TEST(Rendezvous, AClientWaitsForItsServer) {
  auto o = job(1);
  {
    const Server s(o);
    o.port = s.port();
  }
  std::unique_ptr<Client> c;
  std::thread early([&] { c = std::make_unique<Client>(Client::Options{o.address, o.port, o.token, 0, 1, enough}); });
  std::this_thread::sleep_for(150ms);
  const Server s(o);
  early.join();
  ASSERT_TRUE(c);
  EXPECT_EQ(c->add("x", 1), 1);
}

TEST(Rendezvous, TheOldestStrangerMakesRoom) {
  auto o = job(1);
  o.greeting = 60s;  // so that nobody leaves for another reason
  const Server s(o);
  std::string why;
  std::vector<wire::Socket> silent;
  for (int i = 0; i <= Server::maxUnauthenticated; ++i)
    silent.push_back(wire::connectTo(o.address, s.port(), Clock::now() + enough, why));
  sockaddr_in first{};
  socklen_t size = sizeof first;
  ASSERT_EQ(getsockname(silent[0].fd, reinterpret_cast<sockaddr *>(&first), &size), 0);
  ASSERT_TRUE(eventually([&] { return !s.dropped().empty(); }));
  EXPECT_EQ(s.dropped().size(), 1u);
  EXPECT_HAS(s.dropped()[0], fmt::format(":{}: too many connections without the token", ntohs(first.sin_port)));
}

TEST(Rendezvous, StrangersCostNobodyAnything) {
  auto o = job(2);
  o.greeting = 500ms;
  const Server s(o);
  auto a = join(o, s, 0);
  std::string why;
  auto connect = [&] { return wire::connectTo(o.address, s.port(), Clock::now() + enough, why); };
  auto ends = [&](const wire::Socket &x) {
    pollfd p{x.fd, POLLIN, 0};
    char byte;
    return poll(&p, 1, int(std::chrono::milliseconds(enough).count())) == 1 && recv(x.fd, &byte, 1, 0) <= 0;
  };
  for (std::string garbage : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100000, '\xff'), std::string(8, '\0'),
                              wire::Writer(wire::Kind::beat).done(),
                              wire::Writer(wire::Kind::hello).number(wire::magic).string("short").done()}) {
    wire::Socket x = connect();
    wire::sendSome(x.fd, garbage, why);
    EXPECT_TRUE(ends(x)) << garbage.substr(0, 20);
  }
  // More silent ones than there is room for, before and while a rank joins.
  std::vector<wire::Socket> silent;
  for (int i = 0; i < Server::maxUnauthenticated + 40; ++i)
    silent.push_back(connect());
  auto b = join(o, s, 1);
  a->set("k", "v");
  EXPECT_EQ(b->get("k", enough), "v");
  for (const wire::Socket &x : silent)
    EXPECT_TRUE(ends(x));
  EXPECT_FALSE(s.failure());
  ASSERT_TRUE(eventually([&] { return !s.dropped().empty(); }));
  EXPECT_HAS(s.dropped().back(), "127.0.0.1:");
  EXPECT_HAS(s.dropped().back(), "it did not present the token in time");
}

TEST(Rendezvous, MessagesAndMemoryAreBounded) {
  const auto o = job(2);
  const Server s(o);
  auto a = join(o, s, 0);
  auto [code, text] = errorOf([&] { a->set("k", std::string(Server::maxMessage, 'x')); });
  EXPECT_EQ(code, ErrorCode::RendezvousFailed);
  EXPECT_HAS(text, "k has 1048576 bytes, the rendezvous at " + s.where() + " takes 1048576");
  const std::string megabyte(Server::maxMessage - 100, 'x');
  int stored = 0;
  for (; stored < 100; ++stored) {
    std::tie(code, text) = errorOf([&] { a->set(fmt::format("k{}", stored), megabyte); });
    if (code != ErrorCode::Internal)
      break;
    a->set(fmt::format("k{}", stored), megabyte);  // written again it costs nothing
  }
  EXPECT_EQ(stored, 64);
  EXPECT_HAS(text, "the values of all ranks exceed 64 MiB");
  // A rank whose message says that it is longer than allowed is lost, by name.
  std::string why;
  wire::Socket wild = wire::connectTo(o.address, s.port(), Clock::now() + enough, why);
  std::string hi =
      wire::Writer(wire::Kind::hello).number(wire::magic).number(1).number(2).string(o.token).string("h").done();
  hi += std::string("\xff\xff\xff\x7f", 4);
  wire::sendSome(wild.fd, hi, why);
  ASSERT_TRUE(a->failure(enough));
  EXPECT_HAS(a->failure()->text, "rank 1 of 2 on h (127.0.0.1:");
  EXPECT_HAS(a->failure()->text, "sent a message of 2147483647 bytes; at most 1048576 are allowed");
}

}  // namespace
}  // namespace gptc::test
