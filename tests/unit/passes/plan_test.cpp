// The memory plan and its checker. The checker must reject every plan that would lose a byte; so offsets are corrupted
// one by one.
#include "arena_run.h"
#include "small_gpt.h"

#include "ir/access.h"
#include "ir/plan_check.h"
#include "passes/analysis/liveness.h"

#include "llvm/ADT/STLExtras.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <random>
#include <set>

namespace gptc::test {
namespace {

std::unique_ptr<Module> planned(const SmallGpt &o) {
  auto m = smallGpt(o);
  runPasses(*m, "canonicalize,cse,dce,autodiff,optimizer,cse,dce,fuse");
  // A workspace on every third group, as a recipe would ask for.
  int n = 0;
  for (auto &f : m->functions)
    for (Op &op : f->body)
      if (op.is(OpKind::fused) && n++ % 3 == 0)
        op.attrs.set("ws", std::vector<int64_t>{100, 64});
  runPasses(*m, "order,settle-writes,plan-memory");
  return m;
}

/// Every list of offsets and every single offset in a planned module.
struct Slot {
  AttrMap *attrs;
  std::string name;
  int index;  // -1: not a list
};
std::vector<Slot> slots(Module &m) {
  std::vector<Slot> all;
  for (auto &s : m.states)
    all.push_back({&s->attrs, "at", -1});
  auto list = [&](AttrMap &attrs, const char *name) {
    for (size_t i = 0; i < attrs.getInts(name).size(); ++i)
      all.push_back({&attrs, name, int(i)});
  };
  for (auto &f : m.functions) {
    list(f->attrs, "args_at");
    for (Op &op : f->body) {
      list(op.attrs, "at");
      list(op.attrs, "ws_at");
    }
  }
  return all;
}
int64_t get(const Slot &s) { return s.index < 0 ? s.attrs->getInt(s.name) : s.attrs->getInts(s.name)[s.index]; }
void set(const Slot &s, int64_t v) {
  if (s.index < 0)
    return s.attrs->set(s.name, v);
  std::vector<int64_t> list = s.attrs->getInts(s.name);
  list[s.index] = v;
  s.attrs->set(s.name, list);
}

class Plan : public testing::TestWithParam<SmallGpt> {};

TEST_P(Plan, HoldsAndIsTight) {
  auto m = planned(GetParam());
  EXPECT_EQ(checkPlan(*m), std::vector<std::string>());
  int64_t states = 0, peak = 0;
  for (auto &s : m->states)
    states += alignedBytes(s->type);
  for (auto &f : m->functions)
    peak = std::max(peak, peakBytes(liveRanges(*f)));
  // Results that take the place of dying operands may save more than tight packing loses.
  int64_t arena = m->attrs.getInt("arena_bytes");
  EXPECT_GT(arena, states);
  EXPECT_LE(arena, states + peak * 11 / 10);
}

TEST_P(Plan, CheckerRejectsImpossibleOffsets) {
  auto m = planned(GetParam());
  int64_t arena = m->attrs.getInt("arena_bytes");
  for (const Slot &s : slots(*m)) {
    int64_t kept = get(s);
    for (int64_t bad : {int64_t(-64), kept + 1, kept + 32, arena, arena + 64, INT64_MAX, INT64_MIN, INT64_MAX - 63}) {
      set(s, bad);
      EXPECT_FALSE(checkPlan(*m).empty()) << s.name << " = " << bad;
    }
    set(s, kept);
  }
  for (int64_t bytes : {arena - 64, int64_t(0), int64_t(-1), INT64_MIN}) {
    m->attrs.set("arena_bytes", bytes);
    EXPECT_FALSE(checkPlan(*m).empty()) << bytes;
  }
  m->attrs.erase("arena_bytes");
  EXPECT_FALSE(checkPlan(*m).empty());
}

TEST(PlanCheck, ResultsInPlaceLieWhereTheirOperandsLie) {
  auto m = parseModule("func @f(%x: f32[1,1,6], %k: f32[1,4,2], %v: f32[1,4,2], %pos: i64[]) -> (f32[1,4,2], "
                       "f32[1,4,2]) {\n%o, %k1, %v1 = attention_cached %x, %k, %v, %pos {n_head=1, n_kv_head=1} : "
                       "f32[1,1,2], f32[1,4,2], f32[1,4,2]\nreturn %k, %k1 }",
                       "t.gir");
  runPipeline(*m, parsePipeline("fuse,settle-writes,plan-memory", nullptr), {});
  EXPECT_EQ(checkPlan(*m), std::vector<std::string>());
  Op &group = *m->functions[0]->body.front();
  group.attrs.set("in_place", std::vector<int64_t>{-1, 1, -1});  // the kernel would leave three rows as they are
  ASSERT_EQ(checkPlan(*m).size(), 1u);
  EXPECT_NE(checkPlan(*m)[0].find("result 1 does not lie where operand 1 lies"), std::string::npos);
}

// A collective that goes on beside %h: what it reads and makes is its own until it is done.
TEST(PlanCheck, CollectivesUnderWay) {
  for (const bool kept : {false, true}) {
    auto m = parseModule(fmt::format("module {{mesh_data=2}} {{ func @f(%a: f32[64]) -> (f32[64], f32[64]{0}) {{\n"
                                     "%g = exp %a : f32[64]\n%r = all_reduce %g {{axis=\"data\", ranks=2}} : f32[64]\n"
                                     "%h = tanh %a : f32[64]\n%s = add %r, %h : f32[64]\nreturn %s, %h{1} }} }}",
                                     kept ? ", f32[64]" : "", kept ? ", %g" : ""),
                         "t.gir");
    runPipeline(*m, parsePipeline("fuse{max=1},settle-writes,overlap-collectives,plan-memory", nullptr), {});
    EXPECT_EQ(checkPlan(*m), std::vector<std::string>());
    Op *made = nullptr, *started = nullptr, *between = nullptr, *done = nullptr;
    for (Op &op : m->functions[0]->body) {
      if (op.is(OpKind::done))
        done = &op;
      if (op.is(OpKind::fused))
        (op.attrs.getString("kind") == "collective" ? started : started && !done ? between : made) = &op;
      if (done)
        break;
    }
    ASSERT_TRUE(made && started && between && done) << print(*m);
    auto at = [](const Op *op) { return op->attrs.getInts("at"); };
    EXPECT_EQ(at(made) == at(started), !kept) << "the sum takes the place of what is summed where nobody else reads it";
    EXPECT_EQ(at(started), at(done));
    const std::vector<int64_t> own = at(between);
    for (const Op *other : {made, started}) {
      between->attrs.set("at", at(other));
      EXPECT_FALSE(checkPlan(*m).empty()) << "on " << (other == made ? "what it reads" : "what it makes");
    }
    between->attrs.set("at", own);
    done->attrs.set("at", own);
    EXPECT_FALSE(checkPlan(*m).empty()) << "done elsewhere";
  }
}

/// Two steps in the arena; everything that is returned and every state.
std::vector<std::vector<double>> inArena(const Module &m, const SmallGpt &o) {
  PlanRun arena(m);
  StateMap init = initialState(m);
  for (const auto &s : m.states)
    arena.put(s->attrs.getInt("at"), init[s->name]);
  std::vector<std::vector<double>> all;
  Tensor valid = scalar(validTokens(o, o.batch * o.accumulate), DType::f32);
  for (int step = 0; step < 2; ++step) {
    std::vector<Tensor> results;
    if (const Function *f = m.function("train_step"))
      results = arena.run(*f, std::vector<Tensor>{tokens(o, 0, o.batch, false), tokens(o, 0, o.batch, true),
                                                  scalar(0, DType::i64), valid});
    else {
      for (int64_t s = 0; s < o.batch * o.accumulate; s += o.batch)
        arena.run(*m.function("accumulate"),
                  std::vector<Tensor>{tokens(o, s, o.batch, false), tokens(o, s, o.batch, true),
                                      scalar(double(s), DType::i64), valid});
      results = arena.run(*m.function("update"), std::vector<Tensor>{valid});
    }
    for (const Tensor &t : results)
      all.push_back(t.data);
  }
  for (const auto &s : m.states)
    all.push_back(arena.get(s->attrs.getInt("at"), s->type).data);
  return all;
}

TEST_P(Plan, RunsInTheArenaAsInTheInterpreter) {
  SmallGpt o = GetParam();
  auto m = planned(o);
  std::vector<std::vector<double>> expected;
  StateMap state = initialState(*m);
  for (int step = 0; step < 2; ++step)
    for (const Tensor &t : trainStep(*m, o, o.batch * o.accumulate, state))
      expected.push_back(t.data);
  for (const auto &s : m->states)
    expected.push_back(state[s->name].data);
  EXPECT_EQ(inArena(*m, o), expected);
}

// A plan that computes the same may still be rejected (garbage may happen not to matter), but none that computes
// something else may pass.
TEST_P(Plan, CheckerAcceptsNoWrongPlan) {
  SmallGpt o = GetParam();
  auto m = planned(o);
  auto expected = inArena(*m, o);
  std::vector<Slot> all = slots(*m);
  std::mt19937 random(1);
  int64_t arena = m->attrs.getInt("arena_bytes");
  int rejected = 0, tried = 0;
  for (int i = 0; i < 300; ++i) {
    const Slot &s = all[random() % all.size()];
    int64_t kept = get(s);
    // Either anywhere, or on top of something else.
    set(s, random() % 2 ? int64_t(random() % (arena / 64)) * 64 : get(all[random() % all.size()]));
    if (get(s) != kept) {
      ++tried;
      if (!checkPlan(*m).empty())
        ++rejected;
      else
        EXPECT_EQ(inArena(*m, o), expected) << s.name << " moved from " << kept << " to " << get(s) << " and accepted";
    }
    set(s, kept);
  }
  EXPECT_GT(rejected, tried / 2);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Plan,
    testing::Values(SmallGpt{}, SmallGpt{.accumulate = 2, .dropout = 0.25}, SmallGpt{.tied = false, .decomposed = true},
                    SmallGpt{.width = 8, .tied = false, .bias = false, .rmsnorm = true, .rope = true, .gated = true},
                    SmallGpt{.dropout = 0.25, .alibi = true, .causal = false}));

std::unique_ptr<Module> parse(const std::string &text) {
  auto m = parseModule(text, "test.gir");
  EXPECT_EQ(verify(*m), std::vector<std::string>());
  return m;
}

/// Runs @f before and after planning, and in the arena, and expects the same states each time.
void expectSameStates(const std::string &text) {
  auto m = parse(text);
  auto fill = [&] {
    StateMap state;
    double next = 1;
    for (const auto &s : m->states) {
      state[s->name] = Tensor(s->type);
      for (double &x : state[s->name].data)
        x = next++;
    }
    return state;
  };
  auto contents = [&](StateMap &state, const std::vector<Tensor> &results) {
    std::vector<std::vector<double>> all;
    for (const Tensor &t : results)
      all.push_back(t.data);
    for (const auto &s : m->states)
      all.push_back(state[s->name].data);
    return all;
  };
  Function *f = m->function("f");
  std::vector<Tensor> args;
  for (const auto &a : f->body.args)
    args.push_back(Tensor(a->type, std::vector<double>(a->type.elements(), 50)));
  StateMap state = fill();
  auto expected = contents(state, interpret(*f, args, state));
  runPasses(*m, "fuse,settle-writes,plan-memory");
  f = m->function("f");
  EXPECT_EQ(checkPlan(*m), std::vector<std::string>()) << print(*m);
  PlanRun arena(*m);
  state = fill();
  for (const auto &s : m->states)
    arena.put(s->attrs.getInt("at"), state[s->name]);
  auto results = arena.run(*f, args);
  for (const auto &s : m->states)
    state[s->name] = arena.get(s->attrs.getInt("at"), s->type);
  EXPECT_EQ(contents(state, results), expected) << print(*m);
}

TEST(PlanWrites, SwapArgumentOldContentAndRepeatedWrites) {
  expectSameStates(R"(
    state @a : f32[3]
    state @b : f32[3]
    state @c : f32[3]
    func @f(%x: f32[3]) -> (f32[3], f32[3]) {
      %0 = read @a : f32[3]
      %1 = read @b : f32[3]
      write @a, %1
      write @b, %0
      write @c, %x
      return %0, %1
    })");
  expectSameStates(R"(
    state @a : f32[3]
    state @b : f32[3]
    func @f(%x: f32[3]) -> (f32[3], f32[3], f32[3]) {
      %0 = read @a : f32[3]
      %1 = add %0, %x : f32[3]
      write @a, %1
      write @b, %1
      %2 = read @a : f32[3]
      %3 = mul %2, %0 : f32[3]
      write @a, %3
      %4 = reshape %0 : f32[3]
      return %2, %4, %3
    })");
  expectSameStates(R"(
    state @a : f32[2,3]
    func @f(%x: f32[2,3]) -> () {
      %0 = read @a : f32[2,3]
      %1 = transpose %0 {perm=[1,0]} : f32[3,2]
      %2 = reshape %1 : f32[2,3]
      write @a, %2
      return
    })");
}

// ---- launches of several groups -------------------------------------------------------------------------------------

/// With two workspaces for each group, as a GPU's plan with launches.
std::unique_ptr<Module> plannedForGpu(const SmallGpt &o) {
  auto m = smallGpt(o);
  runPasses(*m, "canonicalize,cse,dce,autodiff,optimizer,cse,dce,fuse,order,settle-writes");
  for (auto &f : m->functions)
    for (Op &op : f->body)
      if (op.is(OpKind::fused))
        op.attrs.set("ws", std::vector<int64_t>{100, 64});
  Target gpu;
  gpu.warp = 32;
  runPipeline(*m, parsePipeline("horizontal-fusion,plan-memory", &gpu), {});
  return m;
}

/// The groups of a launch in @train_step.
std::vector<Op *> launchOf(Module &m, int64_t number) {
  std::vector<Op *> groups;
  for (Op &op : m.function("train_step")->body)
    if (op.attrs.getInt("launch") == number)
      groups.push_back(&op);
  return groups;
}

TEST(Launches, OfNormsAndUpdatesShareNoMemory) {
  auto m = plannedForGpu({});
  EXPECT_EQ(checkPlan(*m), std::vector<std::string>());
  int params = 0;
  for (const auto &s : m->states)
    params += s->attrs.getString("kind") == "param";
  std::set<int64_t> places;
  for (int64_t launch : {1, 2}) {
    EXPECT_EQ(int(launchOf(*m, launch).size()), params) << launch;
    places.clear();
    for (const Op *op : launchOf(*m, launch))
      for (int64_t at : op->attrs.getInts("ws_at"))
        EXPECT_TRUE(places.insert(at).second) << launch;
  }
  EXPECT_TRUE(launchOf(*m, 3).empty());
}

TEST(Launches, CheckerRejectsThoseThatDependOnEachOther) {
  struct Wrong {
    const char *what;
    std::function<void(Module &)> change;
  };
  const Wrong cases[] = {
      {"loads or stores",  // one workspace for two
       [](Module &m) {
         Op &op = *launchOf(m, 1)[1];
         op.attrs.set("ws_at", launchOf(m, 1)[0]->attrs.getInts("ws_at"));
       }},
      {"loads or stores",  // a workspace where an earlier group loads
       [](Module &m) {
         std::vector<Op *> groups = launchOf(m, 1);
         std::vector<int64_t> at = groups.back()->attrs.getInts("ws_at");
         at[1] = *plannedOffset(m, *m.function("train_step"), *groups.front()->operand(0));
         groups.back()->attrs.set("ws_at", at);
       }},
      {"loads or stores",  // a workspace where a later group loads
       [](Module &m) {
         std::vector<Op *> groups = launchOf(m, 1);
         std::vector<int64_t> at = groups.front()->attrs.getInts("ws_at");
         at[1] = *plannedOffset(m, *m.function("train_step"), *groups.back()->operand(0));
         groups.front()->attrs.set("ws_at", at);
       }},
      {"loads or stores",  // a result in the place of another one
       [](Module &m) {
         std::vector<Op *> groups = launchOf(m, 1);
         groups[1]->attrs.set("at", groups[0]->attrs.getInts("at"));
       }},
      {"loads or stores",  // a result where a later group loads
       [](Module &m) {
         std::vector<Op *> groups = launchOf(m, 1);
         groups[0]->attrs.set(
             "at", std::vector<int64_t>{*plannedOffset(m, *m.function("train_step"), *groups.back()->operand(0))});
       }},
      {"starts alone", [](Module &m) { launchOf(m, 2)[0]->attrs.set("host", true); }},
      {"has ended before",
       [](Module &m) {
         for (Op *op : launchOf(m, 2))
           op->attrs.set("launch", int64_t(1));
       }},
      {"starts alone", [](Module &m) { launchOf(m, 2)[0]->attrs.set("kind", std::string("row")); }},
  };
  for (const Wrong &w : cases) {
    auto m = plannedForGpu({});
    w.change(*m);
    const std::vector<std::string> errors = checkPlan(*m);
    EXPECT_TRUE(llvm::any_of(errors, [&](const std::string &e) { return e.find(w.what) != std::string::npos; }))
        << w.what << " is not in\n"
        << fmt::format("{}", fmt::join(errors, "\n"));
  }
}

// ---- workspaces of products -----------------------------------------------------------------------------------------

TEST(Workspaces, OfProductsSideBySideAreTheirOwnIfThereIsRoom) {
  auto planOf = [](const std::string &options) {
    auto m = smallGpt({});
    runPasses(*m, "canonicalize,cse,dce,autodiff,optimizer,cse,dce,fuse,order,settle-writes");
    for (auto &f : m->functions)
      for (Op &op : f->body)
        if (op.attrs.getString("kind") == "matmul")
          op.attrs.set("ws", std::vector<int64_t>{1 << 20});
    runPasses(*m, "plan-memory" + options);
    return m;
  };
  // By function, the workspaces of its products in order.
  auto workspaces = [](Module &m) {
    std::vector<std::vector<int64_t>> all;
    for (auto &f : m.functions) {
      all.emplace_back();
      for (Op &op : f->body)
        if (op.attrs.getString("kind") == "matmul")
          all.back().push_back(op.attrs.getInts("ws_at")[0]);
    }
    return all;
  };
  auto arena = [](Module &m) { return m.attrs.getInt("arena_bytes"); };
  auto one = planOf(""), two = planOf("{workspaces=2}"), three = planOf("{workspaces=3}");
  for (const auto &[m, apart] : {std::pair(&one, size_t(1)), {&two, size_t(2)}, {&three, size_t(3)}}) {
    EXPECT_EQ(checkPlan(**m), std::vector<std::string>());
    for (const std::vector<int64_t> &at : workspaces(**m))
      for (size_t i = 0; i < at.size(); ++i)
        for (size_t j = i + 1; j < std::min(at.size(), i + apart); ++j)
          EXPECT_GE(std::abs(at[i] - at[j]), 1 << 20) << i << " and " << j << " of " << apart;
  }
  EXPECT_GE(arena(*two), arena(*one) + (1 << 20));
  EXPECT_GE(arena(*three), arena(*two) + (1 << 20));
  // As many as fit.
  const std::string available = std::to_string(arena(*three) - 1);
  EXPECT_EQ(arena(*planOf("{workspaces=3,available=" + available + "}")), arena(*two));
  EXPECT_EQ(arena(*planOf("{workspaces=3,available=1}")), arena(*one))
      << "a plan that does not fit is as small as can be";
}

}  // namespace
}  // namespace gptc::test
