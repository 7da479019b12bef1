// Planned modules of which one number was changed by hand, as a plan from elsewhere may be. The verifier, the check of
// the plan or the building of kernels must turn them down; what they let pass must be right all the same: stay within
// its memory and compute what its own text says.
#include "random_graph.h"

#include "codegen/codegen.h"
#include "ir/plan_check.h"
#include "passes/pass.h"
#include "support/diagnostics.h"
#include "tools/check/emitted.h"
#include "tools/planner/codegen_passes.h"

#include <gtest/gtest.h>

#include <random>

namespace gptc::test {
namespace {

/// Every attribute that holds a number: of functions, of ops, of ops in groups.
std::vector<std::pair<AttrMap *, std::string>> numbersOf(Module &m) {
  std::vector<std::pair<AttrMap *, std::string>> all;
  auto add = [&](AttrMap &attrs) {
    for (const auto &[name, value] : attrs)
      if (std::holds_alternative<int64_t>(value) || std::holds_alternative<std::vector<int64_t>>(value) ||
          std::holds_alternative<bool>(value))
        all.push_back({&attrs, name});
  };
  for (auto &s : m.states)
    add(s->attrs);
  for (auto &f : m.functions) {
    add(f->attrs);
    for (Op &op : f->body) {
      add(op.attrs);
      if (op.body)
        for (Op &inner : *op.body)
          add(inner.attrs);
    }
  }
  return all;
}

int64_t forged(int64_t v, std::mt19937 &random) {
  const int64_t to[] = {0, 1, -1, v + 1, v - 1, 2 * v, v + 64, v - 64, int64_t(1) << 33, INT64_MAX};
  return to[random() % std::size(to)];
}

TEST(ForgedPlan, IsTurnedDownOrRight) {
  registerCodegenPasses();
  const Target target = hostTarget(1);
  PipelineOptions quiet;
  quiet.reproFile.clear();
  ThreadPool pool(1);
  BoundStats stats;
  int rejected = 0, damaged = 0, right = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    auto m = randomModule(seed);
    runPipeline(
        *m,
        parsePipeline("autodiff,optimizer,canonicalize,cse,dce,fuse,settle-writes,select-recipes,plan-memory", &target),
        quiet);
    std::mt19937 random(seed);
    for (int n = 0; n < 12; ++n) {
      auto other = m->clone();
      auto numbers = numbersOf(*other);
      auto [attrs, name] = numbers[random() % numbers.size()];
      Attr value = *attrs->find(name);
      if (auto *i = std::get_if<int64_t>(&value))
        *i = forged(*i, random);
      else if (auto *b = std::get_if<bool>(&value))
        *b = !*b;
      else if (auto &list = std::get<std::vector<int64_t>>(value); list.empty())
        continue;
      else if (random() % 6 == 0)
        list.pop_back();
      else
        list[random() % list.size()] = forged(list[random() % list.size()], random);
      attrs->set(name, value);
      if (!verify(*other).empty() || !checkPlan(*other).empty()) {
        ++rejected;
        continue;
      }
      SCOPED_TRACE("seed " + std::to_string(seed) + ", attribute " + name + "\n" + print(*other));
      try {
        const std::string what =
            emittedDifference(*other, *other, nullptr, inputsFor(*other, seed), pool, target, "", stats);
        ASSERT_EQ(what, "");
        ++right;
      } catch (const UserError &e) {
        EXPECT_EQ(e.diagnostics[0].code, ErrorCode::PlanDamaged) << e.what();
        ++damaged;
      }
    }
  }
  EXPECT_GT(rejected, 50);
  EXPECT_GT(damaged, 0);
  EXPECT_GT(right, 10);
}

}  // namespace
}  // namespace gptc::test
