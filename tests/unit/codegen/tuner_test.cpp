// What a tuner may choose from: schedules whose kernels give the bits of the default's, and nothing else.
#include "codegen/tuner.h"
#include "recipe_harness.h"

#include "ir/diagnostics.h"

#include <gtest/gtest.h>

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
        typed("%y = matmul %a, %b : T[97,201]\n%z = add %y, %c : T[97,201]\n%g = gelu %z : T[97,201]\nyield %z, %g"));
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
        typed("%y = add %a, %b : T[601,515]\n%z = gelu %y : T[601,515]\nyield %z"));
    add("row", 3, "row", typed("%x: T[700,384]"), typed("%y = softmax %x : T[700,384]\nyield %y"));
    add("reduce_all", 2, "reduce_all", typed("%x: T[512,768]"), typed("%y = sum_squares %x : f32[]\nyield %y"));
  }
  add("fold", 5, "fold", "%x: f32[512,768]", "%y = reduce_sum %x {fold=64, lead=1} : f32[768]\nyield %y");
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
    for (size_t i = 0; i < space.size(); i += (space.size() + 15) / 16)
      some.push_back(space[i]);
    for (const Trial &t : bench.compile(some))
      EXPECT_EQ(bench.check(t), Trial::Outcome::timed) << c.name << ": " << t.schedule.str();
  }
  EXPECT_EQ(recipes.size(), 8u) << "every recipe that has a space";
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
  const std::vector<Trial> trials = bench.compile({other});
  ASSERT_EQ(trials.size(), 1u);
  EXPECT_EQ(bench.check(trials[0]), Trial::Outcome::wrongBits);
  EXPECT_EQ(bench.check(bench.base()), Trial::Outcome::timed);
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
  int raced = 0;
  for (const Trial &t : r.trials) {
    EXPECT_GT(t.time.median, 0) << t.schedule.str();
    EXPECT_LE(t.time.least, t.time.median);
    EXPECT_EQ(t.source.size(), 64u);
    raced += t.raced > 0;
  }
  EXPECT_GE(raced, 2);
  EXPECT_LE(raced, 5);
}

}  // namespace
}  // namespace gptc::test
