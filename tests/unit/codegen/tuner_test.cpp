// What a tuner may choose from: schedules whose kernels give the bits of the default's, and nothing else.
#include "codegen/tuner/group_bench.h"
#include "tests/support/recipe_harness.h"
#include "tests/support/whole_run.h"

#include "support/diagnostics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <set>

namespace gptc::test {
namespace {

struct Case {
  const char *name;
  Group group;
  size_t least;  // schedules of the space
};

std::vector<Case> cases() {
  std::vector<Case> all;
  auto add = [&](const char *name, size_t least, const char *kind, const std::string &args, const std::string &body) {
    all.push_back({name, group(kind, args, body), least});
  };
  for (const char *t : {"f32", "bf16"}) {
    auto typed = [&](const char *text) {
      std::string s = text;
      for (size_t at; (at = s.find("T[")) != std::string::npos;)
        s.replace(at, 1, t);
      return s;
    };
    add("y", 20, "matmul", typed("%a: T[97,131]; %b: T[131,201]; %c: T[201]"),
        typed("%y = matmul %a, %b : T[97,201]\n%z = add %y, %c : T[97,201]\n%g = gelu_tanh %z : T[97,201]\nyield %z, "
              "%g"));
    add("dx", 20, "matmul", typed("%a: T[97,131]; %b: T[201,131]"),
        typed("%y = matmul %a, %b {tb=true} : T[97,201]\nyield %y"));
    add("dw", 20, "matmul", typed("%a: T[130,97]; %b: T[130,201]"),
        typed("%y = matmul %a, %b {fold=32, out=\"f32\", ta=true} : f32[97,201]\nyield %y"));
    add("decode", 3, "matmul", typed("%a: T[2,131]; %b: T[131,4001]"),
        typed("%y = matmul %a, %b : T[2,4001]\nyield %y"));
    add("attention", 10, "attention", typed("%x: T[2,67,72]"),
        typed("%o, %l = attention %x {n_head=3, n_kv_head=3} : T[2,67,24], f32[2,3,67]\nyield %o, %l"));
    add("attention_grad", 20, "attention_grad",
        typed("%do: T[2,67,24]; %x: T[2,67,72]; %o: T[2,67,24]; %l: f32[2,3,67]"),
        typed("%d = attention_grad %do, %x, %o, %l {n_head=3, n_kv_head=3} : T[2,67,72]\nyield %d"));
    add("pointwise", 8, "pointwise", typed("%a: T[601,515]; %b: T[601,515]"),
        typed("%y = add %a, %b : T[601,515]\n%z = gelu_tanh %y : T[601,515]\nyield %z"));
    add("row", 3, "row", typed("%x: T[700,384]"), typed("%y = softmax %x : T[700,384]\nyield %y"));
    add("reduce_all", 2, "reduce_all", typed("%x: T[512,768]"), typed("%y = sum_squares %x : f32[]\nyield %y"));
  }
  add("fold", 5, "fold", "%x: f32[512,768]", "%y = reduce_sum %x {fold=64, lead=1} : f32[768]\nyield %y");
  add("pack", 4, "pack", "%b: f32[300,515]", "%p = pack %b {cols=32} : f32[17,300,32]\nyield %p");
  add("panels", 4, "matmul", "%a: f32[97,131]; %p: f32[4,131,64]",
      "%b = unpack %p : f32[131,201]\n%y = matmul %a, %b : f32[97,201]\nyield %y");
  add("scatter", 3, "scatter", "%dy: f32[512,96]; %i: i32[512]",
      "%t = embedding_grad %dy, %i {vocab=50} : f32[50,96]\nyield %t");
  return all;
}

TEST(Tuner, EveryScheduleOfASpaceGivesTheBitsOfTheDefault) {
  const Target target = hostTarget(3);
  ThreadPool pool(3);
  std::set<std::string> recipes;
  for (const Case &c : cases()) {
    const Op &fused = *c.group.fused;
    const std::vector<Schedule> space = scheduleSpace(fused, target);
    EXPECT_GE(space.size(), c.least) << c.name;
    recipes.insert(fused.attrs.getString("kind"));
    GroupBench bench(fused, target, pool, false);
    // Some of each, from all over it: compiling takes the time.
    std::vector<Schedule> some;
    for (size_t i = 0, step = space.size() / sized(4, 16) + 1; i < space.size(); i += step)
      some.push_back(space[i]);
    for (const Schedule &s : some)
      EXPECT_EQ(bench.verdict(s), Trial::Outcome::timed) << c.name << ": " << s.str();
  }
  EXPECT_EQ(recipes.size(), 9u) << "every recipe that has a space";
}

TEST(Tuner, ASpaceHasNoDefaultAndNothingTwice) {
  const Target target = hostTarget(2);
  for (const Case &c : cases()) {
    std::set<std::string> texts = {defaultSchedule(*c.group.fused, target).str()};
    for (const Schedule &s : scheduleSpace(*c.group.fused, target)) {
      EXPECT_TRUE(texts.insert(s.str()).second) << s.str();
      Schedule again;
      EXPECT_TRUE(Schedule::parse(s.str(), again) && again == s) << s.str();
    }
  }
}

TEST(Tuner, FiftySchedulesForTheMatmulsOfGpt2) {
  const Target target = hostTarget(2);
  for (const char *t : {"f32", "bf16"})
    for (auto [in, out] : {std::pair<int, int>{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}}) {
      std::set<std::string> kernels;
      const Group g = group("matmul", fmt::format("%a: {0}[1024,{1}]; %b: {0}[{1},{2}]", t, in, out),
                            fmt::format("%y = matmul %a, %b : {}[1024,{}]\nyield %y", t, out));
      for (const Schedule &s : scheduleSpace(*g.fused, target))
        kernels.insert(kir::print(lowerGroup(*g.fused, s, target).kernel));
      EXPECT_GE(kernels.size(), 50u) << t << " " << in << " " << out;
    }
}

TEST(Tuner, AnotherOrderOfASumIsNoticed) {
  const Target target = hostTarget(2);
  ThreadPool pool(2);
  const Group g = group("row", "%x: f32[64,384]", "%y = softmax %x : f32[64,384]\nyield %y");
  Schedule other = defaultSchedule(*g.fused, target);
  other.vec /= 2;
  GroupBench bench(*g.fused, target, pool, false);
  EXPECT_EQ(bench.verdict(other), Trial::Outcome::wrongBits);
  EXPECT_EQ(bench.check(bench.base(), 10), Trial::Outcome::timed);
}

TEST(Tuner, ASearchTimesCandidatesAndRacesTheBest) {
  const Target target = hostTarget(2);
  ThreadPool pool(2);
  const Group g = group("matmul", "%a: f32[128,256]; %b: f32[256,256]", "%y = matmul %a, %b : f32[128,256]\nyield %y");
  const SearchResult r = searchSchedules(*g.fused, target, pool, {.seconds = 2});
  ASSERT_GE(r.trials.size(), 2u);
  EXPECT_EQ(r.trials[0].schedule, defaultSchedule(*g.fused, target));
  EXPECT_EQ(r.trials[0].raced, 1);
  EXPECT_LE(r.trials[r.best].raced, 1);
  int raced = 0, near = 0;
  double best = HUGE_VAL;
  for (const Trial &t : r.trials)
    best = std::min(best, t.time.median);
  for (const Trial &t : r.trials) {
    EXPECT_GT(t.time.median, 0) << t.schedule.str();
    EXPECT_LE(t.time.least, t.time.median);
    EXPECT_EQ(t.source.size(), 64u);
    raced += t.raced > 0;
    near += &t != &r.trials[0] && t.time.median < 1.25 * best;
  }
  EXPECT_EQ(raced, 1 + std::min(near, 4)) << "the default, and the fastest of those that are near the best";
}

// ---- candidates that go wrong ---------------------------------------------------------------------------------------

/// A group whose candidates are told apart by `task`, and of which some are made to go wrong.
struct Wrong {
  Group g = group("pointwise", "%a: f32[64,256]; %b: f32[64,256]", "%y = add %a, %b : f32[64,256]\nyield %y");
  Target target = hostTarget(2);
  ThreadPool pool{2};
  const Op &fused = *g.fused;
  std::map<std::string, std::function<LoweredGroup()>> wrong;  // by schedule

  std::vector<Schedule> space() const { return scheduleSpace(fused, target); }
  LoweredGroup good(const Schedule &s) const { return lowerGroup(fused, s, target); }
  Lowering lowering() const {
    return [this](const Op &, const Schedule &s, const Target &) {
      auto it = wrong.find(s.str());
      return it == wrong.end() ? good(s) : it->second();
    };
  }
  /// The kernel with one more phase.
  LoweredGroup with(const Schedule &s, kir::Stmt phase) const {
    LoweredGroup l = good(s);
    l.kernel.body.push_back(std::move(phase));
    return l;
  }
  kir::Buffer param(const LoweredGroup &l, unsigned i) const { return l.kernel.params.at(i); }
  /// One more store, to a parameter, its end or its beginning be where they are: the verifier looks at constant indices
  /// only.
  std::function<LoweredGroup()> storing(const Schedule &s, unsigned parameter, int64_t at) const {
    return [=, this] {
      LoweredGroup l = good(s);
      const kir::Buffer b = param(l, parameter);
      b->written = true;
      const kir::Var zero = kir::makeVar("zero");
      l.kernel.body.push_back(kir::loop(kir::LoopKind::serial, zero, kir::imm(1),
                                        {kir::store(b, kir::ref(zero) + at, kir::fimm(7, DType::f32))}));
      return l;
    };
  }
};

TEST(WrongCandidates, WritingOutsideIsSeenAndMended) {
  Wrong w;
  const std::vector<Schedule> space = w.space();
  ASSERT_GE(space.size(), 4u);
  const int64_t n = 64 * 256;
  w.wrong[space[0].str()] = w.storing(space[0], 2, n);    // behind the result
  w.wrong[space[1].str()] = w.storing(space[1], 2, -1);   // before it
  w.wrong[space[2].str()] = w.storing(space[2], 0, n);    // behind an operand
  w.wrong[space[3].str()] = w.storing(space[3], 1, 100);  // in an operand
  GroupBench bench(w.fused, w.target, w.pool, false, w.lowering());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(bench.verdict(space[size_t(i)]), Trial::Outcome::wroteOutside) << i;
    // The next one finds everything as it was.
    EXPECT_EQ(bench.check(bench.base(), 10), Trial::Outcome::timed) << i;
  }
}

TEST(WrongCandidates, OneWrongBitIsSeen) {
  Wrong w;
  const Schedule s = w.space()[0];
  w.wrong[s.str()] = [&] {
    LoweredGroup l = w.good(s);
    const kir::Buffer y = w.param(l, 2);
    kir::Expr at = kir::imm(64 * 256 - 1);
    l.kernel.body.push_back(kir::store(y, at, kir::load(y, at) * kir::fimm(1 + 0x1p-23, DType::f32)));
    return l;
  };
  GroupBench bench(w.fused, w.target, w.pool, false, w.lowering());
  EXPECT_EQ(bench.verdict(s), Trial::Outcome::wrongBits);
}

TEST(WrongCandidates, OneThatDoesNotCompileLeavesTheOthers) {
  Wrong w;
  const std::vector<Schedule> space = w.space();
  w.wrong[space[0].str()] = []() -> LoweredGroup { GPTC_UNREACHABLE("no kernel"); };
  w.wrong[space[1].str()] = [&] {  // the verifier refuses it
    LoweredGroup l = w.good(space[1]);
    l.kernel.body.push_back(kir::store(w.param(l, 2), kir::ref(kir::makeVar("unbound")), kir::fimm(1, DType::f32)));
    return l;
  };
  GroupBench bench(w.fused, w.target, w.pool, false, w.lowering());
  std::vector<Trial> trials = bench.propose({space[0], space[1], space[2]});
  ASSERT_EQ(trials.size(), 3u);
  std::vector<Trial *> rest;
  for (Trial &t : trials)
    if (t.outcome == Trial::Outcome::timed)
      rest.push_back(&t);
  bench.build(rest);
  EXPECT_EQ(trials[0].outcome, Trial::Outcome::notCompiled);
  EXPECT_NE(trials[0].why.find("no kernel"), std::string::npos);
  EXPECT_EQ(trials[1].outcome, Trial::Outcome::notCompiled);
  EXPECT_EQ(trials[2].outcome, Trial::Outcome::timed);
  EXPECT_EQ(bench.check(trials[2], 10), Trial::Outcome::timed);
}

/// Tasks that each take some milliseconds, so many of them that all would take minutes.
LoweredGroup endless(const Wrong &w, const Schedule &s) {
  LoweredGroup l = w.good(s);
  const kir::Buffer y = w.param(l, 2);
  const kir::Var i = kir::makeVar("i");
  const kir::Expr at = kir::ref(i) % kir::imm(64);
  kir::Stmt again = kir::loop(kir::LoopKind::serial, i, kir::imm(1000000),
                              {kir::store(y, at, kir::load(y, at) * kir::fimm(0.5, DType::f32))});
  l.kernel.body.push_back(kir::loop(kir::LoopKind::parallel, kir::makeVar("t"), kir::imm(100000), {again}));
  return l;
}

TEST(WrongCandidates, OneThatTakesForEverIsGivenUp) {
  Wrong w;
  const Schedule s = w.space()[0];
  w.wrong[s.str()] = [&] { return endless(w, s); };
  GroupBench bench(w.fused, w.target, w.pool, false, w.lowering());
  std::vector<Trial> trial = bench.propose({s});
  bench.build({&trial[0]});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(bench.check(trial[0], 0.1), Trial::Outcome::tooSlow);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(WrongCandidates, NoneIsChosen) {
  Wrong w;
  const std::vector<Schedule> space = w.space();
  ASSERT_GE(space.size(), 6u);
  w.wrong[space[0].str()] = w.storing(space[0], 2, 64 * 256);
  w.wrong[space[1].str()] = w.storing(space[1], 2, 5);  // other bits
  w.wrong[space[2].str()] = []() -> LoweredGroup { GPTC_UNREACHABLE("no kernel"); };
  w.wrong[space[3].str()] = [&] { return endless(w, space[3]); };
  GroupBench bench(w.fused, w.target, w.pool, false, w.lowering());
  struct Log : TrialLog {
    std::map<std::string, Trial::Outcome> seen;
    void add(const Trial &t) override { EXPECT_TRUE(seen.try_emplace(t.schedule.str(), t.outcome).second); }
  } log;
  const SearchResult r = searchSchedules(bench, space, {.seconds = 3, .log = &log});
  EXPECT_EQ(log.seen.at(space[0].str()), Trial::Outcome::wroteOutside);
  EXPECT_EQ(log.seen.at(space[1].str()), Trial::Outcome::wrongBits);
  EXPECT_EQ(log.seen.at(space[2].str()), Trial::Outcome::notCompiled);
  EXPECT_EQ(log.seen.at(space[3].str()), Trial::Outcome::tooSlow);
  EXPECT_EQ(log.seen.at(space[4].str()), Trial::Outcome::timed);
  for (size_t i = 0; i < r.trials.size(); ++i)
    if (r.trials[i].outcome != Trial::Outcome::timed) {
      EXPECT_NE(i, r.best);
      EXPECT_EQ(r.trials[i].raced, 0);
      EXPECT_EQ(r.trials[i].time.runs, 0);
    }
}

TEST(Tuner, WhatIsOnRecordIsNotMeasuredAgain) {
  Wrong w;
  struct Log : TrialLog {
    std::map<std::pair<std::string, std::string>, Trial> known;
    int added = 0;
    std::optional<Trial> find(const Trial &t) override {
      auto it = known.find({t.schedule.str(), t.source});
      return it == known.end() ? std::nullopt : std::optional(it->second);
    }
    void add(const Trial &t) override {
      ++added;
      Trial copy = t;
      copy.known = true;
      EXPECT_TRUE(known.emplace(std::pair(t.schedule.str(), t.source), copy).second) << t.schedule.str();
    }
  } log;
  GroupBench first(w.fused, w.target, w.pool, false);
  const size_t tried = searchSchedules(first, w.space(), {.seconds = 2, .log = &log}).trials.size();
  EXPECT_EQ(log.added, int(tried));
  GroupBench second(w.fused, w.target, w.pool, false);
  const SearchResult r = searchSchedules(second, w.space(), {.seconds = 2, .log = &log});
  EXPECT_EQ(log.added, int(std::max(tried, r.trials.size())));
  EXPECT_GT(r.trials[0].raced, 0) << "the race is run again";
  // Of another source nothing is known.
  Log other;
  for (auto [key, t] : log.known) {
    t.source = key.second[0] == 'a' ? "b" + key.second.substr(1) : "a" + key.second.substr(1);
    other.known.emplace(std::pair(key.first, t.source), t);
  }
  GroupBench third(w.fused, w.target, w.pool, false);
  searchSchedules(third, w.space(), {.seconds = 1, .log = &other});
  EXPECT_GE(other.added, 2);
}

TEST(Tuner, WhatTheNearestShapeProposesIsRacedInAnyCase) {
  Wrong w;
  const std::vector<Schedule> space = w.space();
  const Schedule &last = space.back();
  GroupBench bench(w.fused, w.target, w.pool, false);
  const SearchResult r = searchSchedules(bench, space, {.seconds = 0.05, .proposed = last});
  ASSERT_GE(r.trials.size(), 2u);
  EXPECT_EQ(r.trials[1].schedule, last);
  EXPECT_GT(r.trials[1].raced, 0);
}

}  // namespace
}  // namespace gptc::test
