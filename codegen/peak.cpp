#include "codegen/peak.h"

#include "codegen/codegen.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace gptc {

using namespace kir;

double measurePeakFlops(ThreadPool &pool, const Target &target, DType operands) {
  const bool pairs = operands == DType::bf16 && target.bf16Dot;
  const int width = target.lanes(DType::f32);
  const int chains = target.vectorRegisters - 4;  // enough to hide the latency of an FMA, few enough not to spill
  const int64_t steps = 2000, tasks = 16 * pool.size();

  Buffer in = makeBuffer("in", DType::f32, Storage::global, 2);
  Buffer out = makeBuffer("out", DType::f32, Storage::global, tasks * chains * width, true);
  Buffer acc = makeBuffer("acc", DType::f32, Storage::reg, chains * width);
  Var t = makeVar("t"), s = makeVar("s"), a = makeVar("a", DType::f32), b = makeVar("b", DType::f32);
  auto all = [&](auto statement) {
    Var c = makeVar("c"), l = makeVar("l");
    Expr at = ref(c) * width + ref(l);
    return loop(LoopKind::unroll, c, imm(chains), {loop(LoopKind::vector, l, imm(width), {statement(at)}, width)});
  };
  Stmt start = all([&](Expr at) { return store(acc, at, ref(b)); });
  // Chains of sums; a factor that is a sum itself would keep the pairs from being used.
  Expr factor = pairs ? pair(ref(a), ref(a)) : ref(a);
  Var x = makeVar("x", factor->dtype);
  Stmt step = all([&](Expr at) {
    Expr sum = load(acc, at);
    return store(acc, at, pairs ? dot(sum, ref(x), ref(x)) : fma(ref(x), ref(x), sum));
  });
  Stmt finish = all([&](Expr at) { return store(out, ref(t) * (chains * width) + at, load(acc, at)); });
  Stmt task =
      let(a, load(in, imm(0)),
          {let(b, load(in, imm(1)),
               {let(x, factor, {alloc(acc, {start, loop(LoopKind::serial, s, imm(steps), {step}), finish})})})});
  Kernel k{"peak", {in, out}, {loop(LoopKind::parallel, t, imm(tasks), {task})}};

  Jit jit(target, "");
  CompiledPhase phase = jit.compile({&k})[0].phases[0];
  std::vector<float> input{0.5f, 1.0f}, output(out->size);
  void *params[] = {input.data(), output.data()};
  struct Call {
    CompiledPhase phase;
    void **params;
  } call{phase, params};
  auto run = [](void *c, int64_t begin, int64_t end) {
    auto *call = static_cast<Call *>(c);
    call->phase.run(call->params, begin, end);
  };
  using Clock = std::chrono::steady_clock;
  const double flops = (pairs ? 4.0 : 2.0) * chains * width * steps * tasks;
  double best = 0;
  for (auto begin = Clock::now(); Clock::now() - begin < std::chrono::milliseconds(50);) {
    auto from = Clock::now();
    pool.run(tasks, run, &call);
    best = std::max(best, flops / std::chrono::duration<double>(Clock::now() - from).count());
  }
  return best;
}

}  // namespace gptc
