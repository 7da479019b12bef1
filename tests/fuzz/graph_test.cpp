// Random functions through the whole pipeline: compiled kernels in the planned arena against the interpreter. Here a
// result that shares memory with an operand that is still read, or a group that no recipe covers, comes to light.
#include "../unit/passes/random_graph.h"

#include "codegen/codegen.h"
#include "passes/pass.h"
#include "runtime/executor.h"
#include "tools/driver/codegen_passes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

namespace gptc::test {
namespace {

/// The largest finite value that any op of @f computes; infinity where one is not finite.
double largestValue(const RandomGraph &graph, std::span<const Tensor> args, StateMap state) {
  std::unique_ptr<Module> m = graph.m->clone();
  Function *f = m->function("f");
  std::vector<Value *> all;
  for (Op &op : f->body)
    for (unsigned i = 0; i < op.numResults(); ++i)
      all.push_back(op.result(i));
  f->body.back()->erase();
  Builder(f->body).ret(all);
  double largest = 1;
  for (const Tensor &t : interpret(*f, args, state))
    for (double v : t.data)
      largest = std::isfinite(v) ? std::max(largest, std::fabs(v)) : INFINITY;
  return largest;
}

/// A tensor as memory (no type here is padded).
std::vector<char> bytesOf(const Tensor &t) {
  std::vector<char> bytes(t.type.bytes());
  for (size_t i = 0; i < t.data.size(); ++i) {
    auto put = [&](auto v) { std::memcpy(&bytes[i * sizeof v], &v, sizeof v); };
    if (t.type.dtype == DType::f32)
      put(float(t.data[i]));
    else if (t.type.dtype == DType::i32)
      put(int32_t(t.data[i]));
    else
      put(int64_t(t.data[i]));
  }
  return bytes;
}

void expectClose(const Tensor &expected, const void *memory, double tolerance, const std::string &what) {
  if (isInt(expected.type.dtype)) {
    std::vector<char> bytes = bytesOf(expected);
    ASSERT_EQ(std::memcmp(bytes.data(), memory, bytes.size()), 0) << what;
    return;
  }
  const float *actual = static_cast<const float *>(memory);
  for (size_t i = 0; i < expected.data.size(); ++i)
    ASSERT_NEAR(expected.data[i], actual[i], tolerance) << what << " [" << i << "]";
}

void runOne(unsigned seed, ThreadPool &pool, const Target &target, int &compared) {
  RandomGraph graph(seed);
  const std::vector<Tensor> args = graph.args();
  // f32 kernels are compared where all values are moderate; a longer chain of products proves nothing.
  const double largest = largestValue(graph, args, graph.states());
  if (largest > 1000)
    return;
  ++compared;
  const std::string original = print(*graph.m);
  SCOPED_TRACE(original);
  StateMap state = graph.states();
  const std::vector<Tensor> expected = interpret(*graph.m->function("f"), args, state);

  PipelineOptions options;
  options.reproFile = "";
  runPipeline(*graph.m,
              parsePipeline("canonicalize,cse,dce,fuse,order,settle-writes,select-recipes,plan-memory", &target),
              options);
  Arena arena(graph.m->attrs.getInt("arena_bytes"));
  std::memset(arena.data(), 0x7f, arena.bytes());  // 3e38: what nobody wrote is noticed
  Executor executor(*graph.m, target, target, arena, pool, "");
  StateMap initial = graph.states();
  for (const auto &s : graph.m->states) {
    std::vector<char> bytes = bytesOf(initial[s->name]);
    std::memcpy(executor.state(s->name), bytes.data(), bytes.size());
  }
  std::vector<std::vector<char>> argBytes;
  std::vector<const void *> pointers;
  for (const Tensor &t : args)
    argBytes.push_back(bytesOf(t));
  for (const auto &bytes : argBytes)
    pointers.push_back(bytes.data());
  executor.run("f", pointers);
  EXPECT_TRUE(arena.intact());
  const double tolerance = 1e-4 * largest;
  for (unsigned i = 0; i < expected.size(); ++i)
    expectClose(expected[i], executor.result("f", i), tolerance, "result " + std::to_string(i));
  for (const auto &s : graph.m->states)
    expectClose(state[s->name], executor.state(s->name), tolerance, "@" + s->name);
}

class RandomKernels : public testing::TestWithParam<unsigned> {};

TEST_P(RandomKernels, EqualTheInterpreter) {
  registerCodegenPasses();
  ThreadPool pool(2);
  const Target target = hostTarget(2);
  const char *more = std::getenv("GPTC_FUZZ_ROUNDS");
  int compared = 0;
  for (int n = 0; n < (more ? std::atoi(more) : 6) && !HasFatalFailure(); ++n) {
    const unsigned seed = GetParam() * 1000000 + n;
    SCOPED_TRACE("seed " + std::to_string(seed));
    runOne(seed, pool, target, compared);
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomKernels, testing::Range(100u, 104u));

}  // namespace
}  // namespace gptc::test
