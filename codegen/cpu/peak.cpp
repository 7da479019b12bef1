#include "codegen/cpu/peak.h"

#include "support/diagnostics.h"

#include "llvm/Config/llvm-config.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sys/mman.h>

namespace gptc {

using namespace kir;

namespace {

using Clock = std::chrono::steady_clock;

/// Contiguous bytes per task: long enough for the hardware prefetcher.
constexpr int64_t taskBytes = 1 << 20;

double secondsOf(ThreadPool &pool, const CompiledPhase &phase, void *const *params) {
  struct Call {
    const CompiledPhase &phase;
    void *const *params;
  } call{phase, params};
  const auto from = Clock::now();
  pool.run(
      phase.tasks,
      [](void *c, int64_t begin, int64_t end) {
        auto *call = static_cast<Call *>(c);
        call->phase.run(call->params, begin, end);
      },
      &call);
  return std::chrono::duration<double>(Clock::now() - from).count();
}

struct PeakKernel {
  Kernel kernel;
  double flops;     // FLOP of one run
  int64_t outputs;  // elements
};

PeakKernel peakKernel(const Target &target, DType operands, unsigned threads) {
  const bool pairs = operands == DType::bf16 && target.bf16Dot;
  const int width = target.lanes(DType::f32);
  const int chains = target.vectorRegisters - 4;  // enough to hide the latency of an FMA, few enough not to spill
  const int64_t steps = 6000, tasks = 16 * threads;

  Buffer from = makeBuffer("in", DType::f32, Storage::global, 2);
  Buffer to = makeBuffer("out", DType::f32, Storage::global, tasks * chains * width, true);
  Buffer acc = makeBuffer("acc", DType::f32, Storage::reg, chains * width);
  Var t = makeVar("t"), s = makeVar("s"), a = makeVar("a", DType::f32), b = makeVar("b", DType::f32);
  auto all = [&](auto statement) {
    Var c = makeVar("c"), l = makeVar("l");
    Expr at = ref(c) * width + ref(l);
    return loop(LoopKind::unroll, c, imm(chains), {loop(LoopKind::vector, l, imm(width), {statement(at)}, width)});
  };
  Stmt start = all([&](Expr at) { return store(acc, at, ref(b)); });
  // The chains go through the sum only: a factor that depended on a sum would have to be rounded to a pair each step.
  Expr factor = pairs ? pair(ref(a), ref(a)) : ref(a);
  Var x = makeVar("x", factor->dtype);
  Stmt step = all([&](Expr at) {
    Expr sum = load(acc, at);
    return store(acc, at, pairs ? dot(sum, ref(x), ref(x)) : fma(ref(x), ref(x), sum));
  });
  Stmt finish = all([&](Expr at) { return store(to, ref(t) * (chains * width) + at, load(acc, at)); });
  Stmt task =
      let(a, load(from, imm(0)),
          {let(b, load(from, imm(1)),
               {let(x, factor, {alloc(acc, {start, loop(LoopKind::serial, s, imm(steps), {step}), finish})})})});
  return {Kernel{"peak", {from, to}, {loop(LoopKind::parallel, t, imm(tasks), {task})}},
          (pairs ? 4.0 : 2.0) * chains * width * steps * double(tasks), to->size};
}

}  // namespace

std::string peakSource(const Target &target, DType operands) {
  return fmt::format("LLVM {} {}", LLVM_VERSION_STRING,
                     kir::print(peakKernel(target, operands, target.threads).kernel));
}

PeakLoop::PeakLoop(ThreadPool &pool, const Target &target, DType operands) : pool(pool), jit(target, "") {
  const PeakKernel k = peakKernel(target, operands, pool.size());
  phase = jit.compile({&k.kernel})[0].phases[0];
  out.resize(size_t(k.outputs));
  flops = k.flops;
}

double PeakLoop::run() {
  void *params[] = {in.data(), out.data()};
  return flops / secondsOf(pool, phase, params);
}

double measurePeakFlops(ThreadPool &pool, const Target &target, DType operands) {
  PeakLoop loop(pool, target, operands);
  double best = 0;
  for (auto begin = Clock::now(); Clock::now() - begin < std::chrono::milliseconds(50);)
    best = std::max(best, loop.run());
  return best;
}

struct MemoryProbe::Impl {
  ThreadPool &pool;
  int64_t bytes;  // of each array
  void *arrays[3] = {};
  Jit jit;
  std::vector<CompiledKernel> kernels;
  std::vector<float> sums;

  Impl(ThreadPool &pool, const Target &target)
      : pool(pool), bytes((std::max<int64_t>(128 << 20, 4 * target.l3Bytes) + taskBytes - 1) / taskBytes * taskBytes),
        jit(target, "") {
    for (void *&a : arrays) {
      a = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (a == MAP_FAILED) {
        a = nullptr;
        release();
        throw UserError(ErrorCode::OutOfMemory, fmt::format("no {} bytes to measure memory with", 3 * bytes),
                        "free some memory");
      }
      (void)madvise(a, size_t(bytes), MADV_HUGEPAGE);
      std::memset(a, 0, size_t(bytes));
    }
    const int width = 4 * target.lanes(DType::f32);  // several chains of sums
    const int64_t each = taskBytes / 4, n = bytes / 4, tasks = n / each;
    sums.resize(size_t(tasks));
    auto array = [&](const char *name, bool written) {
      Buffer b = makeBuffer(name, DType::f32, Storage::global, n, written);
      b->streamed = written;
      return b;
    };
    Var t = makeVar("t"), c = makeVar("c");
    const Expr at = ref(t) * each + ref(c);
    auto sweep = [&](Stmt st) { return loop(LoopKind::vector, c, imm(each), {std::move(st)}, width); };
    auto kernel = [&](const char *name, std::vector<Buffer> params, std::vector<Stmt> task) {
      return Kernel{name, std::move(params), {loop(LoopKind::parallel, t, imm(tasks), std::move(task))}};
    };
    Buffer x = array("x", false), y = array("y", false), to = array("to", true),
           sum = makeBuffer("sum", DType::f32, Storage::global, tasks, true),
           acc = makeBuffer("acc", DType::f32, Storage::reg, width);
    Stmt clear = loop(LoopKind::vector, makeVar("i"), imm(width), {store(acc, lane(), fimm(0))}, width);
    Kernel read = kernel("read", {x, sum},
                         {alloc(acc, {clear, sweep(store(acc, lane(), load(acc, lane()) + load(x, at))),
                                      store(sum, ref(t), hreduce(acc, BinaryOp::add))})}),
           copy = kernel("copy", {x, to}, {sweep(store(to, at, load(x, at)))}),
           triad = kernel("triad", {x, y, to}, {sweep(store(to, at, fma(load(y, at), fimm(3), load(x, at))))});
    kernels = jit.compile({&read, &copy, &triad});
  }
  ~Impl() { release(); }

  void release() {
    for (void *a : arrays)
      if (a)
        munmap(a, size_t(bytes));
  }

  MemorySpeed once() {
    void *read[] = {arrays[0], sums.data()}, *copy[] = {arrays[0], arrays[2]},
         *triad[] = {arrays[0], arrays[1], arrays[2]};
    auto rate = [&](size_t kernel, void *const *params, int named) {
      return double(named * bytes) / secondsOf(pool, kernels[kernel].phases[0], params);
    };
    return {rate(0, read, 1), rate(1, copy, 2), rate(2, triad, 3)};
  }
};

MemoryProbe::MemoryProbe(ThreadPool &pool, const Target &target) : impl(std::make_unique<Impl>(pool, target)) {}
MemoryProbe::~MemoryProbe() = default;
MemorySpeed MemoryProbe::once() { return impl->once(); }

MemorySpeed measureMemory(ThreadPool &pool, const Target &target) {
  MemoryProbe probe(pool, target);
  MemorySpeed best;
  // A run takes up to a second if the caches are large, and so the arrays.
  const auto begin = Clock::now();
  for (int i = 0; i < 10 && (i < 3 || Clock::now() - begin < std::chrono::seconds(2)); ++i) {
    const MemorySpeed s = probe.once();
    best = {std::max(best.read, s.read), std::max(best.copy, s.copy), std::max(best.triad, s.triad)};
  }
  return best;
}

}  // namespace gptc
