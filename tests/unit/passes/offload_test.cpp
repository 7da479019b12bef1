// Updates by the host: the same steps, in a part of their own, with states in an arena of their own.
#include "small_gpt.h"

#include "ir/plan_check.h"
#include "support/diagnostics.h"

namespace gptc::test {
namespace {

struct Case {
  SmallGpt model;
  std::string compute = "fp32", optimizer = "adamw", state = "fp32";
};

std::unique_ptr<Module> compiled(const Case &c, const std::string &passes, bool offload = true) {
  auto m = smallGpt(c.model);
  m->attrs.set("compute", c.compute);
  m->attrs.set("optimizer", c.optimizer);
  m->attrs.set("optimizer_state", c.state);
  if (c.optimizer != "adamw")
    m->attrs.set(c.optimizer == "sgd" ? "momentum" : "first_moment", 0.9);
  if (offload)
    m->attrs.set("offload", std::string("optimizer"));
  runPasses(*m, passes);
  EXPECT_EQ(verify(*m), std::vector<std::string>());
  return m;
}

constexpr const char *grouped = "canonicalize,cse,dce,autodiff,optimizer,canonicalize,cse,dce,precision,fuse,order";

class Offload : public testing::TestWithParam<Case> {};

TEST_P(Offload, StepsAreTheSame) {
  auto m = compiled(GetParam(), grouped);
  const SmallGpt &o = GetParam().model;
  auto twoSteps = [&] {
    StateMap state = initialState(*m);
    std::vector<std::vector<double>> results;
    for (int step = 0; step < 2; ++step)
      for (const Tensor &t : trainStep(*m, o, o.batch * o.accumulate, state))
        results.push_back(t.data);
    for (const auto &s : m->states)
      results.push_back(state[s->name].data);
    return results;
  };
  const auto expected = twoSteps();
  for (const char *passes : {"offload", "settle-writes", "plan-memory"}) {
    runPasses(*m, passes);
    EXPECT_EQ(verify(*m), std::vector<std::string>());
    EXPECT_EQ(twoSteps(), expected) << "after " << passes;
  }
  EXPECT_EQ(checkPlan(*m), std::vector<std::string>());
}

TEST_P(Offload, AFunctionIsThreeParts) {
  auto m = compiled(GetParam(), std::string(grouped) + ",offload,settle-writes,plan-memory");
  int updates = 0;
  for (const auto &f : m->functions) {
    int changes = 0;
    bool host = false;
    for (const Op &op : f->body)
      if (op.is(OpKind::fused)) {
        changes += runsOnHost(op) != host;
        host = runsOnHost(op);
        updates += host;
      }
    EXPECT_LE(changes, 2) << "@" << f->name;
  }
  EXPECT_GT(updates, 0);
}

TEST_P(Offload, StatesOfUpdatesAreInTheHostsMemory) {
  auto m = compiled(GetParam(), std::string(grouped) + ",offload,settle-writes,plan-memory"),
       without = compiled(GetParam(), std::string(grouped) + ",settle-writes,plan-memory", false);
  int64_t moved = 0;
  for (const auto &s : m->states) {
    const std::string kind = s->attrs.getString("kind");
    // What forward reads in f32 stays: parameters without low copies, and the table that is looked up.
    if (kind == "moment") {
      EXPECT_TRUE(livesOnHost(*s)) << s->name;
    }
    if (kind == "counter" || kind == "low" || (kind == "param" && !m->state("low." + s->name))) {
      EXPECT_FALSE(livesOnHost(*s)) << s->name;
    }
    if (kind == "param" && m->state("low." + s->name) && s->name != "wte") {
      EXPECT_TRUE(livesOnHost(*s)) << s->name;
    }
    EXPECT_EQ(s->attrs.getInt("at") >= hostArena, livesOnHost(*s));
    moved += livesOnHost(*s) ? (s->type.bytes() + 63) / 64 * 64 : 0;
  }
  EXPECT_GE(m->attrs.getInt("host_bytes"), moved);
  EXPECT_LE(m->attrs.getInt("arena_bytes"), without->attrs.getInt("arena_bytes") - moved * 9 / 10);
  EXPECT_FALSE(without->attrs.has("host_bytes"));
}

INSTANTIATE_TEST_SUITE_P(Models, Offload,
                         testing::Values(Case{SmallGpt{}}, Case{SmallGpt{.accumulate = 2}},
                                         Case{SmallGpt{.dropout = 0.25, .tied = false}, "bf16"},
                                         Case{SmallGpt{.accumulate = 2}, "bf16", "adamw", "bf16"},
                                         Case{SmallGpt{}, "fp32", "sgd"}));

TEST(OffloadCheck, RefusesWhatIsNotBuilt) {
  auto m = compiled({SmallGpt{}, "fp32", "adafactor"}, grouped);
  EXPECT_THROW(runPasses(*m, "offload"), UserError);
  m = compiled({SmallGpt{}}, grouped);
  m->attrs.set("offload", std::string("parameters"));
  EXPECT_THROW(runPasses(*m, "offload"), UserError);
}

// A plan may come from anyone: the GPU must reach nothing of the host's, and the host no more than its slot.
TEST(OffloadCheck, RefusesWhatReachesTheOtherMemory) {
  auto m = compiled({SmallGpt{}}, std::string(grouped) + ",offload,settle-writes,plan-memory");
  ASSERT_EQ(checkPlan(*m), std::vector<std::string>());
  auto expectRefused = [&](const std::string &why) {
    const std::vector<std::string> problems = checkPlan(*m);
    ASSERT_FALSE(problems.empty()) << why;
    EXPECT_NE(problems[0].find(why), std::string::npos) << problems[0];
  };
  State *moment = nullptr, *step = m->state("step");
  for (const auto &s : m->states)
    if (livesOnHost(*s))
      moment = &*s;
  ASSERT_TRUE(moment);
  const AttrMap kept = moment->attrs, keptStep = step->attrs;
  moment->attrs.erase("memory");
  expectRefused("lies in the wrong memory");
  moment->attrs = kept;
  step->attrs.set("memory", std::string("host"));
  expectRefused("lies in the wrong memory");
  step->attrs = keptStep;
  for (const auto &f : m->functions)
    for (Op &op : f->body)
      if (runsOnHost(op)) {
        op.attrs.erase("host");
        expectRefused("lies in the host's arena");
        op.attrs.set("host", true);
        op.attrs.set("ws", std::vector<int64_t>{64});
        op.attrs.set("ws_at", std::vector<int64_t>{0});
        expectRefused("a group of the host with workspaces");
        const Attr kind = *op.attrs.find("kind");
        op.attrs.set("kind", std::string("collective"));
        expectRefused("a group of kind collective is none for the host");
        op.attrs.set("kind", kind);
        op.attrs.erase("ws");
        op.attrs.erase("ws_at");
        goto found;
      }
found:
  const int64_t bytes = m->attrs.getInt("host_bytes");
  for (int64_t less : {bytes - 2 * hostSlotBytes(*m), int64_t(0)}) {
    m->attrs.set("host_bytes", less);
    EXPECT_FALSE(checkPlan(*m).empty()) << less;
  }
  m->attrs.set("host_bytes", int64_t(-1));
  expectRefused("no valid host_bytes");
}

}  // namespace
}  // namespace gptc::test
