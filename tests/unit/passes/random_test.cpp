// Random functions through every pass: the interpreter's results must stay the same to the bit, and the plan must hold.
#include "arena_run.h"
#include "random_graph.h"

#include "passes/pass.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace gptc::test {
namespace {

std::vector<std::vector<double>> outcome(const Module &m, const std::vector<Tensor> &results, StateMap &state) {
  std::vector<std::vector<double>> all;
  for (const Tensor &t : results)
    all.push_back(t.data);
  for (const auto &s : m.states)
    all.push_back(state[s->name].data);
  return all;
}

/// GPTC_FUZZ_ROUNDS asks for a longer run.
unsigned rounds() {
  const char *more = std::getenv("GPTC_FUZZ_ROUNDS");
  return more ? std::atoi(more) : 50;
}

class RandomPasses : public testing::TestWithParam<unsigned> {};

TEST_P(RandomPasses, KeepEveryBit) {
  for (unsigned n = 0; n < rounds(); ++n) {
    const unsigned seed = GetParam() * 1000000 + n;
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomGraph graph(seed);
    Module &m = *graph.m;
    ASSERT_EQ(verify(m), std::vector<std::string>());
    const std::string original = print(m);
    const std::vector<Tensor> args = graph.args();
    StateMap state = graph.states();
    std::vector<Tensor> results = interpret(*m.function("f"), args, state);
    const auto expected = outcome(m, results, state);

    static const char *const fusions[] = {"fuse", "fuse{max=3}", "fuse{epilogue=false}", "fuse{row=false}",
                                          "fuse{pointwise=false}"};
    PipelineOptions options;
    options.reproFile = "";
    for (const char *pass :
         {"cse", "canonicalize", "dce", fusions[seed % std::size(fusions)], "order", "settle-writes", "plan-memory"}) {
      ASSERT_NO_THROW(runPipeline(m, parsePipeline(pass, nullptr), options)) << pass << "\n" << original;
      state = graph.states();
      results = interpret(*m.function("f"), args, state);
      ASSERT_EQ(outcome(m, results, state), expected) << "after " << pass << "\n" << original << print(m);
    }
    PlanRun arena(m);
    state = graph.states();
    for (const auto &s : m.states)
      arena.put(s->attrs.getInt("at"), state[s->name]);
    results = arena.run(*m.function("f"), args);
    for (const auto &s : m.states)
      state[s->name] = arena.get(s->attrs.getInt("at"), s->type);
    ASSERT_EQ(outcome(m, results, state), expected) << "in the arena\n" << original << print(m);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPasses, testing::Range(0u, 8u));

}  // namespace
}  // namespace gptc::test
