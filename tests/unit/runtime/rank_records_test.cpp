// Records of one of several ranks of a machine, beside those of a rank that has the machine for itself.
#include "codegen/codegen.h"
#include "runtime/tuning/tuned_schedules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

using namespace gptc;

namespace {

std::unique_ptr<Module> moduleOf(const std::string &kind, const std::string &arguments, const std::string &body,
                                 const std::string &result) {
  return parseModule(fmt::format("func @f({0}) -> ({1}) {{\n%y = fused %a, %b {{kind=\"{2}\"}} : {1} {{\n^({0})\n"
                                 "{3}\nyield %m\n}}\nreturn %y\n}}",
                                 arguments, result, kind, body),
                     "test");
}

/// One of a race on `target`, with times that are made up.
TuningRecord record(const Op &op, const Target &target, const Schedule &s, double raced) {
  TuningRecord r = problemOf(op, target);
  const LoweredGroup low = lowerGroup(op, s, target);
  r.schedule = s;
  r.source = Jit(target, "").sources({&low.kernel})[0];
  r.time = {1e-3, 1e-3, 1e-3, 5};
  r.raced = raced;
  r.session = "1";
  r.isDefault = s == defaultSchedule(op, target);
  return r;
}

TEST(RankRecords, OfOneRankAndOfOneOfSeveralStandApart) {
  const auto m = moduleOf("matmul", "%a: f32[60,48], %b: f32[48,64]", "%m = matmul %a, %b : f32[60,64]", "f32[60,64]");
  const Op &op = *m->functions[0]->body.front();
  const Target alone = hostTarget(2), ofTwo = hostTarget(2, 2), ofFour = hostTarget(2, 4);
  const std::set<std::string> machines = {fingerprintOf(alone), fingerprintOf(ofTwo), fingerprintOf(ofFour)};
  EXPECT_EQ(machines.size(), 3u);
  EXPECT_EQ(problemOf(op, ofTwo).problem, problemOf(op, alone).problem);
  const Schedule other = scheduleSpace(op, ofTwo)[0];
  TuningRecords records("", true);
  records.append({record(op, ofTwo, defaultSchedule(op, ofTwo), 1), record(op, ofTwo, other, 0.5)});
  EXPECT_EQ(TunedSchedules(records, ofTwo).find(op, alone), other);
  for (const Target &target : {alone, ofFour}) {
    TunedSchedules t(records, target);
    EXPECT_FALSE(t.find(op, alone));
    EXPECT_EQ(t.counts.byDefault, 1);
    EXPECT_FALSE(t.isKnown(op));
  }
}

TEST(RankRecords, ARankHasItsShareOfTheCpus) {
  const unsigned all = hostTarget().threads;
  EXPECT_EQ(hostTarget(0, 2).threads, std::max(1U, all / 2));
  EXPECT_EQ(hostTarget(0, all).threads, 1u);
  EXPECT_EQ(hostTarget(0, 3 * all).threads, 1u) << "it needs one";
  EXPECT_EQ(hostTarget(3, 2).threads, 3u) << "those asked for are of each rank";
}

// Where the default has won, it is the default with a rank's threads, and not with those of the whole machine.
TEST(RankRecords, TheDefaultThatWonIsThatOfTheThreadsMeasuredWith) {
  const auto m = moduleOf("scatter", "%a: f32[512,512], %b: i32[512]",
                          "%m = embedding_grad %a, %b {vocab=50} : f32[50,512]", "f32[50,512]");
  const Op &op = *m->functions[0]->body.front();
  const Target ofRank = hostTarget(1, 2), machine = hostTarget(64);
  const Schedule base = defaultSchedule(op, ofRank);
  ASSERT_NE(base, defaultSchedule(op, machine));
  TuningRecords records("", true);
  records.append({record(op, ofRank, base, 1)});
  EXPECT_EQ(TunedSchedules(records, ofRank).find(op, machine), base);
  EXPECT_EQ(TunedSchedules(records, ofRank).find(op, ofRank), std::nullopt);
}

}  // namespace
