// recipe_bench [FILTER] [--threads N] [--schedule "row vec=.. .."] [--emit] [--cached]: bandwidth of the generated
// pointwise, row, fold, reduce_all and scatter kernels, against memcpy of as many bytes in the same moment. Traffic
// counts every operand and result once.
//
// Default sizes are those of GPT-2 124M with 4096 tokens, beyond the last-level cache where the op allows; --cached
// takes few rows, so that all stays in L2. One thread counts CPU time, several count wall time on the pool.
#include "support/diagnostics.h"
#include "support/thread_pool.h"
#include "tests/support/recipe_harness.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

using namespace gptc;

namespace {

double now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

struct Case {
  const char *name, *kind;
  std::string args, body;
  int64_t below = 4;  // integers of operands
};

/// N stands for the number of rows, as text is shared by both sizes.
std::string sized(const char *text, int64_t n) {
  std::string s = text;
  for (size_t at; (at = s.find('N')) != std::string::npos;)
    s.replace(at, 1, std::to_string(n));
  return s;
}

std::vector<Case> cases(bool cached) {
  const int64_t n = cached ? 32 : 16384;
  std::vector<Case> list;
  auto add = [&](const char *name, const char *kind, const char *args, const char *body, int64_t below = 4,
                 int64_t divide = 1) {
    list.push_back({name, kind, sized(args, std::max<int64_t>(1, n / divide)),
                    sized(body, std::max<int64_t>(1, n / divide)), below});
  };
  add("add", "pointwise", "%x: f32[N,768]; %y: f32[N,768]", "%0 = add %x, %y : f32[N,768]\nyield %0");
  add("bias", "pointwise", "%x: f32[N,768]; %b: f32[768]", "%0 = add %x, %b : f32[N,768]\nyield %0");
  add("bias_in_place", "pointwise", "%x: f32[N,768]; %b: f32[768]", "%0 = add %x, %b : f32[N,768]\nyield %0");
  add("gelu", "pointwise", "%x: f32[N,768]", "%0 = gelu_tanh %x : f32[N,768]\nyield %0");
  add("gelu_grad", "pointwise", "%dy: f32[N,768]; %x: f32[N,768]",
      "%0 = gelu_tanh_grad %dy, %x : f32[N,768]\nyield %0");
  add("dropout", "pointwise", "%x: f32[4,N,768]; %seed: i64[]; %step: i64[]; %seq: i64[]",
      "%0 = dropout %x, %seed, %step, %seq {p=0.2, stream=3} : f32[4,N,768]\nyield %0", 4, 4);
  add("embedding", "pointwise", "%t: f32[50257,768]; %p: f32[N,768]; %ids: i32[4,N]",
      "%0 = embedding %t, %ids : f32[4,N,768]\n%1 = add %0, %p : f32[4,N,768]\nyield %1", 50257, 4);
  add("sgd", "pointwise", "%p: f32[N,768]; %g: f32[N,768]; %m: f32[N,768]; %lr: f32[]; %scale: f32[]",
      "%a, %b = sgd %p, %g, %lr, %scale, %m {momentum=0.9} : f32[N,768], f32[N,768]\nyield %a, %b");
  add("adamw", "pointwise",
      "%p: f32[N,768]; %g: f32[N,768]; %m: f32[N,768]; %v: f32[N,768]; %lr: f32[]; %step: i64[]; %scale: f32[]",
      "%a, %b, %c = adamw %p, %g, %m, %v, %lr, %step, %scale {beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1} : "
      "f32[N,768], "
      "f32[N,768], f32[N,768]\nyield %a, %b, %c");
  add("transpose", "pointwise", "%x: f32[4,N,12,64]", "%0 = transpose %x {perm=[0,2,1,3]} : f32[4,12,N,64]\nyield %0",
      4, 4);
  add("layernorm", "row", "%x: f32[N,768]; %g: f32[768]; %b: f32[768]",
      "%y, %m, %r = layernorm %x, %g, %b {eps=1e-5} : f32[N,768], f32[N], f32[N]\nyield %y, %m, %r");
  add("layernorm128", "row", "%x: f32[N,128]; %g: f32[128]; %b: f32[128]",
      "%y, %m, %r = layernorm %x, %g, %b {eps=1e-5} : f32[N,128], f32[N], f32[N]\nyield %y, %m, %r");
  add("add_layernorm", "row", "%a: f32[N,768]; %c: f32[N,768]; %g: f32[768]; %b: f32[768]",
      "%x = add %a, %c : f32[N,768]\n%y, %m, %r = layernorm %x, %g, %b {eps=1e-5} : f32[N,768], f32[N], f32[N]\nyield "
      "%x, %y, %m, %r");
  add("layernorm_grad", "row", "%dy: f32[N,768]; %x: f32[N,768]; %g: f32[768]; %m: f32[N]; %r: f32[N]; %d: f32[N,768]",
      "%0 = layernorm_grad %dy, %x, %g, %m, %r : f32[N,768]\n%1 = add %0, %d : f32[N,768]\nyield %1");
  add("softmax", "row", "%x: f32[N,1024]", "%0 = softmax %x : f32[N,1024]\nyield %0");
  add("cross_entropy", "row", "%x: f32[N,50257]; %t: i32[N]",
      "%a, %b = cross_entropy %x, %t : f32[N], f32[N]\nyield %a, %b", 50257, 64);
  add("cross_entropy_grad", "row", "%x: f32[N,50257]; %t: i32[N]; %l: f32[N]; %d: f32[N]",
      "%0 = cross_entropy_grad %x, %t, %l, %d : f32[N,50257]\nyield %0", 50257, 64);
  add("row_squares", "row", "%x: f32[N,768]", "%0 = row_squares %x : f32[N]\nyield %0");
  add("adafactor_squares", "row", "%g: f32[N,768]; %scale: f32[]; %r: f32[N]; %c: f32[768]; %t: f32[]",
      "%0 = adafactor_squares %g, %scale, %r, %c, %t {rows=N} : f32[N]\nyield %0");
  add("adafactor", "row",
      "%p: f32[N,768]; %g: f32[N,768]; %scale: f32[]; %lr: f32[]; %size: f32[]; %r: f32[N]; %c: f32[768]; %t: f32[]",
      "%0 = adafactor %p, %g, %scale, %lr, %size, %r, %c, %t {rows=N} : f32[N,768]\nyield %0");
  add("column_squares", "fold", "%x: f32[N,768]", "%0 = column_squares %x {fold=256} : f32[768]\nyield %0");
  add("bias_grad", "fold", "%x: f32[N,768]", "%0 = reduce_sum %x {fold=64, lead=1} : f32[768]\nyield %0");
  add("bias_grad3072", "fold", "%x: f32[N,3072]", "%0 = reduce_sum %x {fold=256, lead=1} : f32[3072]\nyield %0");
  add("gelu_bias_grad", "fold", "%dy: f32[N,3072]; %x: f32[N,3072]",
      "%h = gelu_tanh_grad %dy, %x : f32[N,3072]\n%0 = reduce_sum %h {fold=256, lead=1} : f32[3072]\nyield %h, %0");
  add("layernorm_params", "fold", "%dy: f32[N,768]; %x: f32[N,768]; %m: f32[N]; %r: f32[N]",
      "%0, %1 = layernorm_grad_params %dy, %x, %m, %r {bias=true, fold=64} : f32[768], f32[768]\nyield %0, %1");
  add("nll_sum", "fold", "%x: f32[N]", "%0 = reduce_sum %x {fold=64, lead=1} : f32[]\nyield %0");
  add("sum_squares", "reduce_all", "%x: f32[N,768]", "%0 = sum_squares %x : f32[]\nyield %0");
  add("embedding_grad", "scatter", "%dy: f32[N,768]; %ids: i32[N]",
      "%0 = embedding_grad %dy, %ids {vocab=50257} : f32[50257,768]\nyield %0", 50257, 4);
  return list;
}

/// Memory for the kernel's parameters, with random operands in it. Returns the bytes that a run moves.
double allocate(const Case &c, const test::Group &g, const kir::Kernel &kernel, std::vector<void *> &params) {
  const Op &fused = *g.fused;
  double bytes = 0;
  std::vector<Tensor> values = test::randomOperands(g, 1, c.below);
  for (unsigned i = 0; i < kernel.params.size(); ++i) {
    const kir::Buffer &b = kernel.params[i];
    int64_t n = b->size * int64_t(sizeOf(b->dtype));
    char *p = static_cast<char *>(std::aligned_alloc(64, size_t((n + 63) / 64 * 64)));
    std::memset(p, 0, size_t(n));
    params.push_back(p);
    if (i >= fused.numOperands() + fused.numResults())
      continue;
    // A table that is only looked up moves as much as is looked up.
    bool looked = llvm::StringRef(c.name) == "embedding" && i == 0;
    bytes += looked ? double(kernel.params.back()->size * 4) : double(n);
    if (i < fused.numOperands())
      for (int64_t e = 0; e < b->size; ++e) {
        double v = std::abs(values[i].data[e]);
        if (b->dtype == DType::f32)
          reinterpret_cast<float *>(p)[e] = float(v);
        else if (b->dtype == DType::i32)
          reinterpret_cast<int32_t *>(p)[e] = int32_t(v);
        else
          reinterpret_cast<int64_t *>(p)[e] = int64_t(v);
      }
  }
  return bytes;
}

}  // namespace

int main(int argc, char **argv) {
  std::string filter, scheduleText;
  unsigned threads = 1;
  bool emit = false, cached = false;
  for (int i = 1; i < argc; ++i) {
    llvm::StringRef a = argv[i];
    if (a == "--threads" && i + 1 < argc)
      threads = unsigned(std::atoi(argv[++i]));
    else if (a == "--schedule" && i + 1 < argc)
      scheduleText = argv[++i];
    else if (a == "--emit")
      emit = true;
    else if (a == "--cached")
      cached = true;
    else
      filter = a.str();
  }
  Target target = hostTarget(threads);
  std::unique_ptr<ThreadPool> pool = threads > 1 ? std::make_unique<ThreadPool>(threads) : nullptr;
  clockid_t clock = pool ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
  Jit jit(target, "");
  std::printf("%-20s %10s %9s %9s %9s %7s  %s\n", "kernel", "MB", "us", "GB/s", "memcpy", "ratio", "schedule");
  for (const Case &c : cases(cached)) {
    if (!llvm::StringRef(c.name).contains(filter))
      continue;
    test::Group g = test::group(c.kind, c.args, c.body);
    const Op &fused = *g.fused;
    Schedule s = defaultSchedule(fused, target);
    if (!scheduleText.empty() && !Schedule::parse(scheduleText, s))
      return std::fprintf(stderr, "cannot read the schedule\n"), 2;
    LoweredGroup low = lowerGroup(fused, s, target);
    if (emit)
      std::printf("%s\n%s\n", kir::print(low.kernel).c_str(), emitLLVM(low.kernel, target, true).c_str());
    CompiledKernel k = jit.compile({&low.kernel})[0];

    std::vector<void *> params;
    const double bytes = allocate(c, g, low.kernel, params);
    const std::vector<void *> owned = params;
    if (llvm::StringRef(c.name).contains("in_place"))
      params[fused.numOperands()] = params[0];
    const size_t half = size_t(bytes / 2);
    std::vector<char> from(half, 1), to(half, 2);
    auto copy = [&] {
      struct Call {
        char *to;
        const char *from;
        size_t n;
      } call{to.data(), from.data(), half};
      auto part = [](void *a, int64_t b, int64_t e) {
        auto *c = static_cast<Call *>(a);
        size_t begin = c->n / 64 * size_t(b), end = e == 64 ? c->n : c->n / 64 * size_t(e);
        std::memcpy(c->to + begin, c->from + begin, end - begin);
      };
      pool ? pool->run(64, part, &call) : part(&call, 0, 64);
    };
    auto kernel = [&] {
      for (const CompiledPhase &p : k.phases) {
        struct Call {
          const CompiledPhase &p;
          void *const *params;
        } call{p, params.data()};
        auto part = [](void *a, int64_t b, int64_t e) {
          static_cast<Call *>(a)->p.run(static_cast<Call *>(a)->params, b, e);
        };
        pool ? pool->run(p.tasks, part, &call) : part(&call, 0, p.tasks);
      }
    };
    kernel();
    copy();
    const int inner = bytes < 4e6 ? int(4e7 / bytes) + 1 : 1;
    double bestKernel = 1e9, bestCopy = 1e9, spent = 0;
    for (int round = 0; round < 100 && (spent < 0.6 || round < 5); ++round) {
      double t = now(clock);
      for (int i = 0; i < inner; ++i)
        kernel();
      double mid = now(clock);
      for (int i = 0; i < inner; ++i)
        copy();
      double end = now(clock);
      bestKernel = std::min(bestKernel, (mid - t) / inner), bestCopy = std::min(bestCopy, (end - mid) / inner);
      spent += end - t;
    }
    std::printf("%-20s %10.2f %9.1f %9.1f %9.1f %7.2f  %s tasks", c.name, bytes * 1e-6, bestKernel * 1e6,
                bytes / bestKernel * 1e-9, bytes / bestCopy * 1e-9, bestCopy / bestKernel, s.str().c_str());
    for (const CompiledPhase &p : k.phases)
      std::printf(" %ld", long(p.tasks));
    std::printf("\n");
    for (void *p : owned)
      std::free(p);
  }
}
