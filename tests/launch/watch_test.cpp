#include "runtime/launch/cores.h"
#include "runtime/launch/rank_watch.h"
#include "runtime/launch/remote_crew.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <set>

using namespace gptc;
using State = PulseView::State;
using std::chrono::milliseconds;

namespace {

/// Ranks of which a test says what they do, on a clock of its own.
struct Stage {
  explicit Stage(int n, RankWatch::Limits limits = {}) : watch(n, limits) {
    for (int i = 0; i < n; ++i)
      ranks.push_back({i, "host", 100 + i, {}, {}});
  }
  /// Time goes on in looks of 50 ms; `act` is called before each with the time since the beginning.
  template <class F> void play(milliseconds time, F act) {
    for (const auto until = now + time; now < until; now += milliseconds(50)) {
      act(std::chrono::duration_cast<milliseconds>(now.time_since_epoch()).count());
      watch.look(ranks, now);
    }
  }
  void beat(int rank) { ++ranks[rank].pulse.beats; }
  void step(int rank) {
    ++ranks[rank].pulse.step;
    ++ranks[rank].pulse.progress;
    ranks[rank].pulse.state = State::stepping;
  }
  std::vector<RankStatus> ranks;
  RankWatch watch;
  RankWatch::Clock::time_point now{};
};

/// Both beat and step, but for what the test changes.
TEST(RankStatus, SaysStepCollectiveAndItsNumber) {
  RankStatus r{2, "node", 712, {}, {}};
  EXPECT_EQ(placeOf(r), "");
  r.pulse.doing = "compiling";
  EXPECT_EQ(placeOf(r), " while compiling");
  r.pulse.step = 7;
  r.pulse.doing = "all_reduce of 8 f32";
  r.pulse.state = State::collective;
  r.pulse.place = uint64_t(12) << 32 | 3;
  EXPECT_EQ(placeOf(r), " after step 7, in all_reduce of 8 f32 (its collective 12)");
  r.pulse.doing = "a step";
  r.pulse.state = State::stepping;
  EXPECT_EQ(placeOf(r), " after step 7, 12 collectives done");
}

TEST(RankWatch, FindsNothingWhereAllGoOn) {
  Stage s(2);
  s.play(milliseconds(60000), [&](long t) {
    for (int r : {0, 1}) {
      s.beat(r);
      if (t % 1000 == 0)
        s.step(r);
    }
    EXPECT_FALSE(t > 0 && s.watch.stuck());
    EXPECT_FALSE(t > 0 && s.watch.slow());
  });
}

TEST(RankWatch, NoHeartbeat) {
  Stage s(3);
  auto act = [&](long) {
    s.beat(0);
    s.beat(1);
  };
  s.play(milliseconds(29000), act);
  EXPECT_FALSE(s.watch.stuck()) << "one that has not begun to beat may still start";
  s.beat(2);
  s.play(milliseconds(3900), act);
  EXPECT_FALSE(s.watch.stuck());
  EXPECT_EQ(s.watch.silent(milliseconds(1000))->rank, 2);
  s.play(milliseconds(300), act);
  ASSERT_TRUE(s.watch.stuck());
  EXPECT_EQ(s.watch.stuck()->rank, 2);
  EXPECT_EQ(s.watch.stuck()->what.rfind("has given no heartbeat for 4.", 0), 0u) << s.watch.stuck()->what;
  s.ranks[2].end = RankEnd{};
  s.play(milliseconds(100), act);
  EXPECT_FALSE(s.watch.stuck()) << "one that has ended need not beat";
}

TEST(RankWatch, WhoNeverBeginsToBeat) {
  Stage s(2);
  auto act = [&](long) { s.beat(0); };
  s.play(milliseconds(29900), act);
  EXPECT_FALSE(s.watch.stuck());
  s.play(milliseconds(300), act);
  ASSERT_TRUE(s.watch.stuck());
  EXPECT_EQ(s.watch.stuck()->rank, 1);
  EXPECT_EQ(s.watch.stuck()->what, "was started 30 s ago and has given no heartbeat yet");
}

/// All ranks in collectives, waiting for these (-1: nobody), after steps of 10 ms. These take half a CPU.
std::optional<RankWatch::Finding> whereAllWait(const std::vector<int> &whom, State oneIs = State::collective,
                                               const std::vector<int> &spin = {}) {
  Stage s(int(whom.size()));
  auto beat = [&](long) {
    for (size_t r = 0; r < whom.size(); ++r)
      s.beat(int(r));
    for (int r : spin)
      s.ranks[size_t(r)].pulse.cpuMs += 25;
  };
  s.play(milliseconds(1000), [&](long t) {
    beat(t);
    for (size_t r = 0; r < whom.size(); ++r)
      s.step(int(r));
  });
  for (size_t r = 0; r < whom.size(); ++r) {
    s.ranks[r].pulse.state = r == 1 ? oneIs : State::collective;
    s.ranks[r].pulse.waitsFor = whom[r];
  }
  s.play(milliseconds(3900), beat);
  EXPECT_FALSE(s.watch.stuck());
  s.play(milliseconds(300), beat);
  return s.watch.stuck();
}

TEST(RankWatch, AllWaitAndNothingComes) {
  auto found = whereAllWait({1, 2, -1, 0});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->what.rfind("hangs within a collective: no rank has got anything for 4.", 0), 0u) << found->what;
  found = whereAllWait({1, 3, 0, 1});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(
      found->what.rfind("is one of those that wait for each other (3, 1), and no rank has got anything for 4.", 0), 0u)
      << found->what;
  for (int spins : {0, 1}) {
    found = whereAllWait({1, 0}, State::collective, {spins});
    ASSERT_TRUE(found);
    EXPECT_EQ(found->rank, spins);
    EXPECT_EQ(
        found->what.rfind("spins within a collective, or a link to it is cut: no rank has got anything for 4.", 0), 0u)
        << found->what;
  }
  found = whereAllWait({1, 0}, State::collective, {0, 1});
  ASSERT_TRUE(found);
  EXPECT_NE(found->what.find("wait for each other"), std::string::npos) << "both compute: " << found->what;
  EXPECT_FALSE(whereAllWait({1, -1, 1}, State::busy)) << "rank 1 saves, and the others may wait for that";
}

// Saving and evaluating tell of each piece. Who computes without one spins; who waits for a disk does not.
/// Two ranks take steps for a second; then rank 0 saves, and rank 1 waits for it.
void saveBehindSomeSteps(Stage &s) {
  s.play(milliseconds(1000), [&](long) {
    for (int r : {0, 1})
      s.beat(r), s.step(r);
  });
  s.ranks[0].pulse.state = State::paced;
  s.ranks[1].pulse.state = State::collective;
}

TEST(RankWatch, WhoSpinsWhileItSaves) {
  for (const bool computes : {true, false})
    for (const bool writes : {true, false}) {
      Stage s(2);
      saveBehindSomeSteps(s);
      auto act = [&](long t) {
        s.beat(0), s.beat(1);
        s.ranks[0].pulse.cpuMs += computes ? 25 : 1;  // half a CPU
        s.ranks[0].pulse.progress += writes && t % 3000 == 0;
      };
      s.play(milliseconds(3900), act);
      EXPECT_FALSE(s.watch.stuck());
      s.play(milliseconds(300), act);
      EXPECT_EQ(s.watch.stuck().has_value(), computes && !writes);
      s.play(milliseconds(60000), act);
      ASSERT_EQ(s.watch.stuck().has_value(), computes && !writes);
      if (computes && !writes) {
        EXPECT_EQ(s.watch.stuck()->rank, 0);
      }
    }
}

// What a rank computed before its last progress says nothing of why it waits now.
TEST(RankWatch, ASlowDiskIsNoSpin) {
  Stage s(2);
  saveBehindSomeSteps(s);
  s.play(milliseconds(20000), [&](long) {
    s.beat(0), s.beat(1);
    s.ranks[0].pulse.cpuMs += 25;
    ++s.ranks[0].pulse.progress;
  });
  EXPECT_FALSE(s.watch.stuck());
  for (int second = 0; second < 60; ++second) {
    s.play(milliseconds(1000), [&](long) {
      s.beat(0), s.beat(1);
      s.ranks[0].pulse.cpuMs += 1;
    });
    ASSERT_FALSE(s.watch.stuck()) << second;
  }
}

TEST(RankWatch, AllWaitInTheFirstStep) {
  Stage s(2);
  auto beat = [&](long) {
    for (int r : {0, 1})
      s.beat(r);
  };
  for (int r : {0, 1})
    s.ranks[r].pulse.state = State::collective, s.ranks[r].pulse.waitsFor = 1 - r;
  s.play(milliseconds(29900), beat);
  EXPECT_FALSE(s.watch.stuck());
  s.play(milliseconds(300), beat);
  EXPECT_TRUE(s.watch.stuck());
}

TEST(RankWatch, WhatTricklesIsNoStandstill) {
  Stage s(2);
  s.play(milliseconds(1000), [&](long) {
    for (int r : {0, 1})
      s.beat(r), s.step(r);
  });
  for (int r : {0, 1})
    s.ranks[r].pulse.state = State::collective, s.ranks[r].pulse.waitsFor = 1 - r;
  s.play(milliseconds(60000), [&](long t) {
    for (int r : {0, 1})
      s.beat(r);
    s.ranks[0].pulse.progress += t % 3000 == 0;
    EXPECT_FALSE(t > 0 && s.watch.stuck()) << "a message came to rank 0 within the last 3 s";
  });
}

TEST(RankWatch, StepsThatTakeLong) {
  Stage s(1);
  auto beat = [&](long) { s.beat(0); };
  s.step(0);
  s.play(milliseconds(20000), beat);
  EXPECT_FALSE(s.watch.stuck()) << "how long a step takes is not known before the first is done";
  s.step(0);
  s.play(milliseconds(4000), beat);
  s.step(0);  // took 4 s, the one before 20 s
  s.play(milliseconds(79000), beat);
  EXPECT_FALSE(s.watch.stuck()) << "four of the longest steps are 80 s";
  s.play(milliseconds(2000), beat);
  ASSERT_TRUE(s.watch.stuck());
  EXPECT_EQ(s.watch.stuck()->what.rfind("runs but gets nowhere for 8", 0), 0u) << s.watch.stuck()->what;
}

TEST(RankWatch, SavingMakesNoStepLong) {
  Stage s(2);
  auto beat = [&](long) {
    for (int r : {0, 1})
      s.beat(r);
  };
  auto bothStep = [&] {
    for (int r : {0, 1})
      s.step(r);
  };
  bothStep();
  s.play(milliseconds(500), beat);
  bothStep();
  // Rank 0 saves for a minute, and rank 1 waits for it.
  s.ranks[0].pulse.state = State::busy;
  s.ranks[1].pulse.state = State::collective;
  s.play(milliseconds(60000), beat);
  bothStep();
  s.play(milliseconds(100), beat);
  s.step(0);
  s.play(milliseconds(3800), beat);
  EXPECT_FALSE(s.watch.stuck());
  s.play(milliseconds(200), beat);
  ASSERT_TRUE(s.watch.stuck());
  EXPECT_EQ(s.watch.stuck()->rank, 1);
}

TEST(RankWatch, WhoWaitsForOthersOrIsBusyIsNotStuck) {
  for (State state : {State::collective, State::busy}) {
    Stage s(1);
    s.play(milliseconds(10000), [&](long t) {
      s.beat(0);
      s.step(0);
    });
    s.ranks[0].pulse.state = state;
    s.play(milliseconds(60000), [&](long) { s.beat(0); });
    EXPECT_FALSE(s.watch.stuck());
    s.ranks[0].pulse.state = State::stepping;
    s.play(milliseconds(100), [&](long) { s.beat(0); });
    EXPECT_TRUE(s.watch.stuck()) << "the same within a step";
  }
}

TEST(RankWatch, TimeInWhichTheLauncherItselfWasStopped) {
  Stage s(1);
  auto act = [&](long) {
    s.beat(0);
    s.step(0);
  };
  s.play(milliseconds(1000), act);
  s.now += std::chrono::hours(1);
  s.play(milliseconds(50), [](long) {});
  EXPECT_FALSE(s.watch.stuck()) << "nobody looked for an hour";
  s.play(milliseconds(5100), [](long) {});
  EXPECT_TRUE(s.watch.stuck());
}

TEST(RankWatch, SlowIsForWhomTheOthersWait) {
  Stage s(3);
  int told = 0, wrong = 0;
  bool equal = false;
  auto act = [&](long t) {
    for (int r = 0; r < 3; ++r) {
      s.beat(r);
      if (t % 500 == 0)
        s.step(r);
      else if (t % 500 >= 200 && (r != 1 || equal))
        s.ranks[r].pulse.state = State::collective;
      s.ranks[r].pulse.place = uint64_t(1 + t / 500 * 2 + (s.ranks[r].pulse.state == State::collective));
    }
    if (auto found = t > 0 ? s.watch.slow() : std::nullopt)
      ++(found->rank == 1 ? told : wrong);
  };
  s.play(milliseconds(9900), act);
  EXPECT_EQ(told, 0) << "not before the window is full";
  s.play(milliseconds(60000), act);
  EXPECT_EQ(told, 1) << "once";
  equal = true;
  s.play(milliseconds(30000), act);
  EXPECT_EQ(told, 1);
  equal = false;
  s.play(milliseconds(30000), act);
  EXPECT_EQ(told, 2) << "again after it has kept up";
  EXPECT_EQ(wrong, 0);
  EXPECT_FALSE(s.watch.stuck()) << "and never stuck";
}

/// What is known of ranks on other machines is old, and not equally: that makes none of them slow.
TEST(RankWatch, OldNewsMakesNobodySlow) {
  for (const bool really : {false, true}) {
    Stage s(2);
    for (RankStatus &r : s.ranks)
      r.age = milliseconds(300);
    int told = 0;
    s.play(milliseconds(60000), [&](long t) {
      for (int r : {0, 1}) {
        s.beat(r);
        s.ranks[r].pulse.state = State::collective;
        // A collective each 10 ms, and news each 250 ms, of rank 1 always 50 ms before. Or rank 1 takes 2 s for each.
        if (t % 250 == (r ? 0 : 50)) {
          s.ranks[r].pulse.place = really ? uint64_t(1 + t / 2000 + (t % 2000 && r == 0)) : uint64_t(1 + t / 10);
          s.ranks[r].pulse.step = t / 2000;
        }
      }
      if (auto found = t > 0 ? s.watch.slow() : std::nullopt) {
        ++told;
        EXPECT_EQ(found->rank, 1);
      }
    });
    EXPECT_EQ(told, really) << really;
  }
}

TEST(Cpus, AreSharedOutWithoutOverlap) {
  std::vector<int> cpus;
  for (int i = 0; i < 13; ++i)
    cpus.push_back(2 * i);
  for (int ranks : {1, 2, 3, 4, 13}) {
    std::set<int> all;
    size_t least = 99, most = 0;
    for (const auto &share : shareCpus(cpus, ranks)) {
      all.insert(share.begin(), share.end());
      least = std::min(least, share.size());
      most = std::max(most, share.size());
      EXPECT_EQ(share.size(), size_t(share.back() - share.front()) / 2 + 1) << "neighbours";
    }
    EXPECT_EQ(all.size(), 13u) << ranks;
    EXPECT_LE(most - least, 1u) << ranks;
  }
  for (const auto &share : shareCpus({4, 5}, 5))
    EXPECT_EQ(share.size(), 1u);
  EXPECT_FALSE(orderedCpus().empty());
}

TEST(Agent, PlansAndWordsTravelWhole) {
  CrewPlan p;
  p.command = {"/a b/gptrun", "it's", "\n"};
  p.environment = {"X=1"};
  p.folder = "/f";
  p.outDir = "/o";
  p.rendezvous = "h:1";
  p.token = "t";
  p.world = 6, p.nodes = 3, p.node = 2, p.ranks = 2, p.resumeAtMost = 7, p.restarts = 2;
  EXPECT_EQ(p.json().find('\n'), std::string::npos);
  const auto q = CrewPlan::parse(p.json());
  ASSERT_TRUE(q);
  EXPECT_EQ(q->json(), p.json());
  EXPECT_EQ(q->first(), 4);
  p.world = 7;
  EXPECT_FALSE(CrewPlan::parse(p.json()));
  for (const char *bad : {"", "{}", "[]", "null", "{\"command\": 3}"})
    EXPECT_FALSE(CrewPlan::parse(bad)) << bad;
  EXPECT_EQ(shellQuoted("it's $HOME"), "'it'\\''s $HOME'");
}

}  // namespace
